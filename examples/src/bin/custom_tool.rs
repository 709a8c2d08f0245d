//! A tool of an application: typed arguments that are repaired and validated, running output, a diagnostic, a replay policy, and a memo
//! for what must stay the same when the call is run again.
//!
//! `cargo run -p picofleet-examples --bin custom_tool`; kill it behind its memo with `... FOLDER --hold rate`, and run it again with
//! `... FOLDER`: the call goes on with the rate that it had.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::future::BoxFuture;
use picofleet_examples::{App, Place, hold, say, show};
use picofleet_harness::live::{Severity, ToolDiagnostic};
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::Json;
use serde::Deserialize;

/// The model asks three times: with a number as a text, which is repaired; with a currency that nobody has; and without an amount.
const SCRIPT: &str = r#"
[[turns]]
blocks = [
    { type = "text", chunks = ["I convert."] },
    { type = "toolCall", name = "convert", arguments = { amount = "1,000", to = "NOK" } },
]
[[turns]]
blocks = [{ type = "toolCall", name = "convert", arguments = { amount = 5, to = "XXX" } }]
[[turns]]
blocks = [{ type = "toolCall", name = "convert", arguments = { to = "NOK" } }]
[[turns]]
blocks = [{ type = "text", chunks = ["That is all."] }]
"#;

/// What the model has to give. The schema says the same; it is checked before the tool runs.
#[derive(Deserialize)]
struct Arguments {
    amount: f64,
    to: String,
}

/// The service that the tool asks. Its rate is another one every time, and another one in every process.
struct Exchange {
    asked: AtomicI64,
}

impl Exchange {
    fn rate(&self, to: &str) -> Option<i64> {
        let rise = self.asked.fetch_add(1, Ordering::Relaxed);
        (to == "NOK").then_some(11 + rise)
    }
}

struct Convert {
    spec: ToolSpec,
    exchange: Arc<Exchange>,
    /// Stop for ever behind the memo.
    holds: bool,
}

impl Convert {
    fn new(exchange: Arc<Exchange>, holds: bool) -> Self {
        let properties = Json::object([("amount", Json::object([("type", "number")])), ("to", Json::object([("type", "string")]))]);
        let schema = Json::build_object()
            .with("type", "object")
            .with("properties", properties)
            .with("required", Json::array(["amount", "to"]))
            .build();
        let mut spec = ToolSpec::new("convert", "converts an amount of euros to a currency", schema);
        // It changes nothing outside, so that a call which a crash cut off may run again. The default is that it may not.
        spec.replay = Replay::Safe;
        Self { spec, exchange, holds }
    }
}

impl Tool for Convert {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Models write "1,000" where a number belongs. The transcript keeps what the model said; the tool gets the number.
    fn prepare_arguments(&self, arguments: Json) -> Result<Json, ToolError> {
        let Some(number) = arguments.get("amount").and_then(Json::as_str).and_then(|text| text.replace(',', "").parse::<f64>().ok()) else {
            return Ok(arguments);
        };
        let to = arguments.get("to").cloned().unwrap_or(Json::null());
        Ok(Json::build_object()
            .with("amount", Json::from_serde(&number).map_err(|error| ToolError::new(error.to_string()))?)
            .with("to", to)
            .build())
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let Arguments { amount, to } = arguments.to().map_err(|error| ToolError::new(error.to_string()))?;
            // Shown while the tool runs, and its result where it gives no other.
            api.output(format!("asking for the rate of {to}\n").as_bytes())?;
            let found = self.exchange.rate(&to).ok_or_else(|| ToolError::new(format!("no rate for {to}")))?;
            // The first value that is kept stays: a rerun gets this one, whatever the exchange says then.
            let rate = api.memo("rate", &found).await?;
            if self.holds {
                hold("rate").await;
            }
            if rate != found {
                api.diagnostic(ToolDiagnostic { severity: Severity::Info, message: "the rate is an earlier one".to_owned(), code: None })?;
            }
            api.output(format!("{amount} EUR are {} {to} at {rate}\n", amount * rate as f64).as_bytes())?;
            Ok(ToolResult { details: Some(Json::object([("rate", rate)])), ..ToolResult::default() })
        })
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let place = Place::of_arguments(&["rate"])?;
    // A later run begins with another rate: a folder that is there means that this is one.
    let later = place.folder().join("session.db").exists();
    let exchange = Arc::new(Exchange { asked: AtomicI64::new(if later { 100 } else { 0 }) });
    let registry = Registry::new();
    registry.tool(Convert::new(exchange, place.holds("rate")))?;

    let app = App::open(place.folder(), registry, SCRIPT).await?;
    let question = app.root.submit(SubmissionDraft::input("What are 1,000 euros in NOK?").request_id("question")).await?;
    question.wait().await?;
    show(&app.root).await?;
    say("The first call was repaired, the second threw, the third never ran: its arguments are none.");
    app.close().await
}
