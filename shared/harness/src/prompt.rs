//! What a request must say about the system prompt and the tools (section 7.4), as a pure function of the transcript and what is wanted.

use picofleet_models::transcript::{declarations_equal, get_current_system_message, get_current_tools};
use picofleet_session::message::{Message, SystemMessage, ToolDeclaration, ToolReference};
use picofleet_session::{ContextView, EntryId, Json, Millis};

use crate::generation::PlannedSystem;
use crate::kinds::SYSTEM;

/// The sections and tools that a request is to have, in their order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Desired {
    /// Sections with their text.
    pub sections: Vec<(String, String)>,
    /// Tools.
    pub tools: Vec<ToolDeclaration>,
}

/// The system messages to append; none where the transcript says it already.
#[must_use]
pub fn plan(view: &ContextView, desired: &Desired) -> Vec<PlannedSystem> {
    if let Some(hidden) = hidden_baseline(view) {
        let message = with_tools(patch(present(&desired.sections)), Vec::new(), desired.tools.clone());
        return vec![PlannedSystem { message, omits: hidden }];
    }
    let shown = shown_sections(&view.messages);
    let mut planned: Vec<SystemMessage> = section_changes(&shown, &desired.sections);
    let (removed, added) = tool_changes(&get_current_tools(&view.messages), &desired.tools);
    if !removed.is_empty() || !added.is_empty() {
        let last = planned.pop().unwrap_or_else(|| patch(Vec::new()));
        planned.push(with_tools(last, removed, added));
    }
    planned.into_iter().map(|message| PlannedSystem { message, omits: Vec::new() }).collect()
}

/// The sections that the transcript shows, in their order.
#[must_use]
pub fn shown_sections(messages: &[Message]) -> Vec<(String, String)> {
    let sections = get_current_system_message(messages).and_then(|message| message.sections);
    let sections = sections.as_ref().and_then(Json::as_object);
    let shown = sections
        .into_iter()
        .flat_map(|sections| sections.iter().map(|(key, text)| (key.to_owned(), text.as_str().map(|t| t.into_owned()))));
    shown.filter_map(|(key, text)| Some((key, text?))).collect()
}

/// Where a head cut the baseline away: the system entries that are still there from before it (section 7.4). `None` where none was cut.
fn hidden_baseline(view: &ContextView) -> Option<Vec<EntryId>> {
    let marker = view.head.as_ref()?;
    let system = || view.entries.iter().filter(|entry| entry.kind == SYSTEM.kind);
    if system().any(|entry| entry.id > marker.id) {
        return None;
    }
    Some(system().filter(|entry| entry.id < marker.id).map(|entry| entry.id).collect())
}

type Section = (String, Option<String>);

fn present(sections: &[(String, String)]) -> Vec<Section> {
    sections.iter().map(|(key, text)| (key.clone(), Some(text.clone()))).collect()
}

fn patch(sections: Vec<Section>) -> SystemMessage {
    let fields = sections.into_iter().map(|(key, text)| (key, text.map_or(Json::null(), |text| Json::from(text.as_str()))));
    let sections: Vec<(String, Json)> = fields.collect();
    SystemMessage {
        content: String::new().into(),
        sections: (!sections.is_empty()).then(|| Json::object(sections)),
        tools_added: None,
        tools_removed: None,
        timestamp: Millis(0),
    }
}

fn with_tools(message: SystemMessage, removed: Vec<ToolReference>, added: Vec<ToolDeclaration>) -> SystemMessage {
    SystemMessage { tools_removed: (!removed.is_empty()).then_some(removed), tools_added: (!added.is_empty()).then_some(added), ..message }
}

/// The minimal patch where it keeps the order; else everything is removed and added again, in two messages.
fn section_changes(shown: &[(String, String)], desired: &[(String, String)]) -> Vec<SystemMessage> {
    let text_of = |sections: &[(String, String)], key: &str| sections.iter().find(|(other, _)| other == key).map(|(_, text)| text.clone());
    let mut changes: Vec<Section> =
        shown.iter().filter(|(key, _)| text_of(desired, key).is_none()).map(|(key, _)| (key.clone(), None)).collect();
    let new = desired.iter().filter(|(key, text)| text_of(shown, key).as_ref() != Some(text));
    changes.extend(new.map(|(key, text)| (key.clone(), Some(text.clone()))));
    // A patch keeps retained sections where they are and appends new ones.
    let retained = shown.iter().filter(|(key, _)| text_of(desired, key).is_some()).map(|(key, _)| key);
    let appended = desired.iter().filter(|(key, _)| text_of(shown, key).is_none()).map(|(key, _)| key);
    if retained.chain(appended).eq(desired.iter().map(|(key, _)| key)) {
        return if changes.is_empty() { Vec::new() } else { vec![patch(changes)] };
    }
    vec![patch(shown.iter().map(|(key, _)| (key.clone(), None)).collect()), patch(present(desired))]
}

/// Removals come before additions in a message; retained tools keep their place and additions go last.
fn tool_changes(shown: &[ToolDeclaration], desired: &[ToolDeclaration]) -> (Vec<ToolReference>, Vec<ToolDeclaration>) {
    let same = |tool: &ToolDeclaration, list: &[ToolDeclaration]| {
        list.iter().any(|other| other.name == tool.name && declarations_equal(other, tool))
    };
    let reference = |tool: &ToolDeclaration| ToolReference { name: tool.name.clone() };
    let removed: Vec<ToolReference> = shown.iter().filter(|tool| !same(tool, desired)).map(reference).collect();
    let added: Vec<ToolDeclaration> = desired.iter().filter(|tool| !same(tool, shown)).cloned().collect();
    let retained = shown.iter().filter(|tool| same(tool, desired)).map(|tool| &tool.name);
    if retained.chain(added.iter().map(|tool| &tool.name)).eq(desired.iter().map(|tool| &tool.name)) {
        return (removed, added);
    }
    (shown.iter().map(reference).collect(), desired.to_vec())
}

#[cfg(test)]
mod tests {
    use picofleet_session::{DraftHead, EntryDraft, EntryRecord, ROOT_CONVERSATION_ID, derive_context};

    use super::*;

    fn tool(name: &str, description: &str) -> ToolDeclaration {
        ToolDeclaration {
            name: name.into(),
            description: description.into(),
            parameters: Json::object::<&str, Json>([]),
            constrained_sampling: None,
        }
    }

    fn desired(sections: &[(&str, &str)], tools: &[ToolDeclaration]) -> Desired {
        Desired { sections: sections.iter().map(|(k, t)| ((*k).to_owned(), (*t).to_owned())).collect(), tools: tools.to_vec() }
    }

    /// A transcript that grows by what is planned.
    #[derive(Default)]
    struct Transcript(Vec<EntryRecord>);

    impl Transcript {
        fn append(&mut self, draft: EntryDraft) -> EntryId {
            let id = EntryId::new(self.0.len() as i64 + 2).unwrap();
            self.0.push(draft.into_record(id, ROOT_CONVERSATION_ID, None));
            id
        }

        fn view(&self) -> ContextView {
            let marker = self.0.iter().rev().find(|entry| entry.head.is_some()).cloned();
            let from = marker.as_ref().and_then(|marker| marker.head);
            let range = self.0.iter().filter(|entry| from.is_none_or(|from| entry.id >= from)).cloned();
            derive_context(marker, range)
        }

        /// Plans, appends, and answers the messages as JSON; afterwards nothing more is planned and the transcript shows what is desired.
        fn step(&mut self, desired: &Desired) -> Vec<String> {
            let planned = plan(&self.view(), desired);
            let mut texts = Vec::new();
            for planned in planned {
                let edits = planned
                    .omits
                    .iter()
                    .map(|id| picofleet_session::ContextEdit { target: *id, action: picofleet_session::EditAction::Omit });
                let edits: Vec<_> = edits.collect();
                texts.push(Json::from_serde(&planned.message).unwrap().to_string());
                let edits = (!edits.is_empty()).then_some(edits);
                self.append(EntryDraft { edits, ..EntryDraft::new("pi.system").model(vec![Message::from(planned.message)]) });
            }
            let view = self.view();
            assert_eq!(plan(&view, desired), [], "the plan is complete");
            assert_eq!(shown_sections(&view.messages), desired.sections);
            assert_eq!(get_current_tools(&view.messages), desired.tools);
            texts
        }
    }

    #[test]
    fn s176_values_make_a_minimal_patch() {
        let mut transcript = Transcript::default();
        transcript.step(&desired(&[("a", "1"), ("b", "1")], &[]));
        assert_eq!(transcript.step(&desired(&[("a", "1"), ("b", "2")], &[])), [r#"{"content":"","sections":{"b":"2"},"timestamp":0}"#]);
        assert_eq!(transcript.step(&desired(&[("b", "2")], &[])), [r#"{"content":"","sections":{"a":null},"timestamp":0}"#]);
        assert_eq!(transcript.step(&desired(&[("b", "2"), ("c", "3")], &[])), [r#"{"content":"","sections":{"c":"3"},"timestamp":0}"#]);
        assert_eq!(transcript.step(&desired(&[("b", "2"), ("c", "3")], &[])), Vec::<String>::new());
    }

    #[test]
    fn s177_another_order_removes_everything_and_adds_it_again() {
        let mut transcript = Transcript::default();
        transcript.step(&desired(&[("a", "1"), ("b", "1")], &[]));
        let texts = transcript.step(&desired(&[("b", "1"), ("a", "1")], &[]));
        assert_eq!(
            texts,
            [
                r#"{"content":"","sections":{"a":null,"b":null},"timestamp":0}"#,
                r#"{"content":"","sections":{"b":"1","a":"1"},"timestamp":0}"#
            ]
        );
        assert_eq!(transcript.step(&desired(&[("b", "1"), ("m", "1"), ("a", "1")], &[])).len(), 2, "an addition in the middle");
    }

    #[test]
    fn s178_behind_a_head_the_baseline_is_written_whole() {
        let mut transcript = Transcript::default();
        let wanted = desired(&[("a", "1")], &[tool("read", "r")]);
        transcript.step(&wanted);
        let kept = transcript.append(EntryDraft::new("pi.user"));
        transcript.step(&desired(&[("a", "2")], &[tool("read", "r")]));
        transcript.append(EntryDraft::new("pi.compaction").head(DraftHead::Entry(kept)));
        let planned = plan(&transcript.view(), &wanted);
        assert_eq!(planned.len(), 1);
        assert_eq!(planned[0].omits.len(), 1, "the retained system entry is hidden");
        transcript.step(&wanted);
        assert_eq!(transcript.step(&desired(&[("a", "3")], &[tool("read", "r")])).len(), 1, "a plain patch follows");
    }

    #[test]
    fn s179_tools_are_removed_and_added_so_that_their_order_holds() {
        let (read, bash, edit) = (tool("read", "r"), tool("bash", "b"), tool("edit", "e"));
        let mut transcript = Transcript::default();
        transcript.step(&desired(&[], &[read.clone(), bash.clone(), edit.clone()]));
        let changed = tool("edit", "e2");
        let texts = transcript.step(&desired(&[], &[read.clone(), bash.clone(), changed.clone()]));
        assert!(texts[0].contains(r#""toolsRemoved":[{"name":"edit"}]"#), "{texts:?}");
        let texts = transcript.step(&desired(&[("a", "1")], &[bash.clone(), read.clone(), changed.clone()]));
        assert_eq!(texts.len(), 1, "tools ride on the section entry");
        assert!(texts[0].contains(r#"[{"name":"read"},{"name":"bash"},{"name":"edit"}]"#), "{texts:?}");
    }
}
