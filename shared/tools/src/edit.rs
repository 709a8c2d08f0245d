//! The tool `edit`.

mod apply;
mod hint;

use std::borrow::Cow;
use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_harness::tools::{EnvError, Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::Json;
use serde::Deserialize;
use similar::TextDiff;

use crate::FILE_BYTES_MAX;
use crate::arguments::{self, counted};

pub use apply::{Edited, Replacement, apply};

/// How often an edit begins anew because the file changed between reading and writing.
const ATTEMPTS_MAX: u32 = 3;
/// The most bytes of the diff in the details, which live documents and transcripts carry.
const DIFF_BYTES_MAX: usize = 64 * 1024;
/// How long the diff may look for the shortest form.
const DIFF_TIME: Duration = Duration::from_millis(500);

const DESCRIPTION: &str = "Change parts of a text file of the workspace. Each edit replaces oldText by newText; oldText has to stand \
in the file exactly once, with every blank, so take enough of its surroundings. All edits refer to the file as it is before the call \
and must not overlap: put all changes of a file into one call. Write line ends as LF; the file keeps its own. If one edit does not \
fit, nothing is changed.";

/// `edit {path, edits: [{oldText, newText}]}`: exact replacements in a text file. Unsafe to repeat, one at a time with its round.
pub struct Edit {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Arguments {
    path: String,
    edits: Vec<Replacement>,
}

impl Edit {
    /// The tool.
    #[must_use]
    pub fn new() -> Self {
        let texts = Json::build_object()
            .with("oldText", arguments::property("string", "What stands in the file, exactly and only once."))
            .with("newText", arguments::property("string", "What is to stand there instead."))
            .build();
        let edits = Json::build_object()
            .with("type", "array")
            .with("minItems", 1)
            .with("items", arguments::schema(texts, &["oldText", "newText"]))
            .with("description", "The replacements.");
        let properties = Json::build_object()
            .with("path", arguments::property("string", "The file: relative to the workspace, or absolute and inside it."))
            .with("edits", edits)
            .build();
        let mut spec = ToolSpec::new("edit", DESCRIPTION, arguments::schema(properties, &["path", "edits"]));
        spec.sequential = true;
        Self { spec }
    }
}

impl Default for Edit {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for Edit {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// `edits` as JSON text, a single edit without its list, an edit that stands in the arguments themselves, and other names.
    fn prepare_arguments(&self, arguments: Json) -> Result<Json, ToolError> {
        let arguments = arguments::rename(arguments::with_path(arguments), "edits", &["changes", "replacements"]);
        let Some(object) = arguments.as_object() else { return Ok(arguments) };
        let edits = match object.get("edits") {
            Some(edits) => parsed(edits).into_owned(),
            None => {
                let edit = with_names(arguments.clone());
                let (Some(old), Some(new)) = (edit.get("oldText"), edit.get("newText")) else { return Ok(arguments) };
                Json::build_object().with("oldText", old).with("newText", new).build()
            }
        };
        let edits: Json = match edits.as_array() {
            Some(list) => list.iter().map(|edit| with_names(parsed(edit).into_owned())).collect(),
            None => Json::array([with_names(edits)]),
        };
        Ok(Json::build_object().with_some("path", object.get("path")).with("edits", edits).build())
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let Arguments { path, edits } = arguments::read(&arguments)?;
            let env = api.env()?;
            for _ in 0..ATTEMPTS_MAX {
                let content = match env.read(&path, FILE_BYTES_MAX).await {
                    Err(EnvError::NotFound { path }) => return Err(ToolError::new(format!("{path} does not exist; make it with write"))),
                    other => other?,
                };
                let (planned, owned, all) = (content.clone(), path.clone(), edits.clone());
                let plan = tokio::task::spawn_blocking(move || Planned::of(&owned, &planned, &all)).await;
                let plan = plan.map_err(|error| ToolError::new(format!("editing {path} broke off: {error}")))??;
                if env.replace(&path, &content, &plan.content).await? {
                    return Ok(ToolResult { details: Some(plan.details), ..ToolResult::text(plan.text) });
                }
            }
            Err(ToolError::new(format!("{path} was changed by somebody else meanwhile; nothing was edited")))
        })
    }
}

/// JSON that was sent as text.
fn parsed(value: &Json) -> Cow<'_, Json> {
    let parsed = value.as_str().and_then(|text| Json::parse(text.as_bytes()).ok()).filter(Json::is_container);
    parsed.map_or(Cow::Borrowed(value), Cow::Owned)
}

fn with_names(edit: Json) -> Json {
    let edit = arguments::rename(edit, "oldText", &["old_text", "oldString", "old_string", "old", "search"]);
    arguments::rename(edit, "newText", &["new_text", "newString", "new_string", "new", "replace"])
}

/// What is to be written and told.
struct Planned {
    content: Vec<u8>,
    text: String,
    details: Json,
}

impl Planned {
    fn of(path: &str, content: &[u8], edits: &[Replacement]) -> Result<Self, ToolError> {
        let edited = apply(content, edits).map_err(|problems| ToolError::new(format!("{path} was not edited: {problems}")))?;
        let diff = TextDiff::configure().timeout(DIFF_TIME).diff_lines(&edited.before, &edited.after);
        let mut diff = diff.unified_diff().context_radius(3).header(&format!("a/{path}"), &format!("b/{path}")).to_string();
        if diff.len() > DIFF_BYTES_MAX {
            let end = diff.floor_char_boundary(DIFF_BYTES_MAX);
            diff.truncate(diff[..end].rfind('\n').map_or(end, |newline| newline + 1));
            diff.push_str("... the rest of the diff is left out\n");
        }
        let text = format!("Edited {path}: {}, from line {} on", counted(edits.len(), "replacement"), edited.first_changed_line);
        let details = Json::build_object().with("diff", diff).with("firstChangedLine", edited.first_changed_line as u64).build();
        Ok(Self { content: edited.content, text, details })
    }
}
