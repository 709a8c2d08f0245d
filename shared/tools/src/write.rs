//! The tool `write`.

use futures::future::BoxFuture;
use picofleet_harness::tools::{EnvError, Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::Json;
use serde::Deserialize;

use crate::arguments::{self, counted};

const DESCRIPTION: &str = "Write a file of the workspace: a new one, or in place of the whole old content. Missing directories are \
made. To change part of a file use edit.";

/// `write {path, content}`: creates or replaces a file, whole or not at all. Unsafe to repeat, one at a time with its round.
pub struct Write {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Arguments {
    path: String,
    content: String,
}

impl Write {
    /// The tool.
    #[must_use]
    pub fn new() -> Self {
        let properties = Json::build_object()
            .with("path", arguments::property("string", "The file: relative to the workspace, or absolute and inside it."))
            .with("content", arguments::property("string", "The whole content, exactly as it is to stand in the file."))
            .build();
        let mut spec = ToolSpec::new("write", DESCRIPTION, arguments::schema(properties, &["path", "content"]));
        spec.sequential = true;
        Self { spec }
    }
}

impl Default for Write {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for Write {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn prepare_arguments(&self, arguments: Json) -> Result<Json, ToolError> {
        Ok(arguments::rename(arguments::with_path(arguments), "content", &["text", "contents", "file_text"]))
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let Arguments { path, content } = arguments::read(&arguments)?;
            let env = api.env()?;
            let created = match env.stat(&path).await {
                Ok(_) => false,
                Err(EnvError::NotFound { .. }) => true,
                Err(error) => return Err(error.into()),
            };
            env.write(&path, content.as_bytes()).await?;
            let done = if created { "Created" } else { "Replaced" };
            let text = format!("{done} {path}: {}", counted(content.len(), "byte"));
            let details = Json::build_object().with("bytes", content.len() as u64).with("created", created).build();
            Ok(ToolResult { details: Some(details), ..ToolResult::text(text) })
        })
    }
}
