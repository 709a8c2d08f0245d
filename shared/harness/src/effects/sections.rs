//! Renders the prompt sections of a request (section 7.4).

use super::invocation::Fault;
use super::phase::PhaseRun;
use crate::registry::PromptInput;

/// The text of every section that has one, in the order of the registry. One that throws keeps the text that the transcript shows.
pub(super) async fn render(phase: &PhaseRun, input: &PromptInput) -> Result<Vec<(String, String)>, Fault> {
    for failure in phase.registry.failures() {
        phase.report(failure);
    }
    let mut rendered = Vec::new();
    for section in phase.registry.sections() {
        let text = match phase.ask_or_report(async { section.text.render(input).await }).await? {
            Some(text) => text.map(|text| section.wrap(text)),
            None => input.shown.iter().find(|(key, _)| *key == section.key).map(|(_, text)| text.clone()),
        };
        rendered.extend(text.map(|text| (section.key.clone(), text)));
    }
    Ok(rendered)
}
