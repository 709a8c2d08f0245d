//! `reasoning_details`: thinking as a gateway wants it back, kept in the signature of a thought.

use picofleet_delta::Json;
use picofleet_session::message::{ThinkingContent, ToolCall};

use crate::arguments::{self, Edges, Joined};

/// Details as they stream in: consecutive ones of the same text or summary are one.
#[derive(Default)]
pub(super) struct Details(Vec<Detail>);

/// A detail whose text may still grow.
struct Detail {
    value: Json,
    /// The member that grows and what it has come to.
    text: Option<(&'static str, String)>,
    joined: Joined,
}

impl Details {
    /// Takes a detail; one of an unknown form is dropped. True when it was taken. `edges` are those of a member's text.
    pub(super) fn push(&mut self, detail: &Json, edges: impl Fn(&str) -> Edges) -> bool {
        if !is_detail(detail) {
            return false;
        }
        let grows = growing(detail);
        if let (Some((member, more)), Some(last)) = (&grows, self.0.last_mut())
            && let Some((last_member, text)) = &mut last.text
            && last_member == member
        {
            text.push_str(&last.joined.push(more.as_str(), edges(member)));
            last.value = filled(&last.value, detail, *member == "text");
            return true;
        }
        let mut joined = Joined::default();
        let grows = grows.map(|(member, text)| (member, joined.push(text, edges(member)).into_owned()));
        self.0.push(Detail { value: detail.clone(), text: grows, joined });
        true
    }

    /// The signature; `None` without details.
    pub(super) fn signature(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let details = self.0.iter().map(|detail| match &detail.text {
            Some((member, text)) => replaced(&detail.value, member, Json::from(text)),
            None => detail.value.clone(),
        });
        Some(crate::js::stringify(&Json::array(details)))
    }
}

/// The details that an answer goes back with: of the first thought that has some, else those that older versions kept in the
/// signatures of calls.
pub(super) fn of_answer(thinking: &[&ThinkingContent], calls: &[&ToolCall]) -> Option<Json> {
    let signed = thinking.iter().find_map(|thinking| parse(thinking.thinking_signature.as_deref()?));
    signed.or_else(|| {
        let legacy: Vec<Json> = calls.iter().filter_map(|call| parse_legacy(call.thought_signature.as_deref()?)).collect();
        (!legacy.is_empty()).then(|| Json::array(legacy))
    })
}

fn parse(signature: &str) -> Option<Json> {
    let value = arguments::decode(signature).ok()?;
    let details = value.as_array()?;
    (!details.is_empty() && details.iter().all(is_detail)).then(|| value.clone())
}

fn parse_legacy(signature: &str) -> Option<Json> {
    let value = arguments::decode(signature).ok()?;
    let filled = |name: &str| value.get(name).and_then(Json::as_str).is_some_and(|text| !text.is_empty());
    (is_detail(&value) && kind_is(&value, "reasoning.encrypted") && filled("id") && filled("data")).then_some(value)
}

fn kind_is(detail: &Json, kind: &str) -> bool {
    detail.get("type").is_some_and(|own| *own == kind)
}

fn is_detail(detail: &Json) -> bool {
    if detail.as_object().is_none() {
        return false;
    }
    let text = |value: &Json| value.as_text().is_some();
    let absent_or = |name: &str, is: &dyn Fn(&Json) -> bool| detail.get(name).is_none_or(is);
    let null_or_text = |value: &Json| value.is_null() || text(value);
    let common = absent_or("id", &null_or_text) && absent_or("format", &text) && absent_or("index", &|value| value.as_f64().is_some());
    let has_text = |name: &str| detail.get(name).is_some_and(text);
    let own = match detail.get("type").and_then(Json::as_str).as_deref() {
        Some("reasoning.summary") => has_text("summary"),
        Some("reasoning.encrypted") => has_text("data"),
        Some("reasoning.text") => has_text("text") && absent_or("signature", &null_or_text),
        _ => false,
    };
    common && own
}

/// The member of a detail that a later one continues, with its text.
fn growing(detail: &Json) -> Option<(&'static str, String)> {
    let member = match detail.get("type").and_then(Json::as_str).as_deref() {
        Some("reasoning.text") => "text",
        Some("reasoning.summary") => "summary",
        _ => return None,
    };
    Some((member, detail.get(member)?.as_str()?.into_owned()))
}

/// A detail with what it lacks and a later one has.
fn filled(detail: &Json, later: &Json, signed: bool) -> Json {
    let mut value = detail.clone();
    for name in ["signature", "id", "format", "index"].into_iter().filter(|name| signed || *name != "signature") {
        let own = value.get(name).filter(|own| !own.is_null());
        // An empty signature or format counts as none; an empty id does not.
        let lacks = own.is_none_or(|own| name != "id" && *own == "");
        if let Some(more) = later.get(name).filter(|_| lacks) {
            value = replaced(&value, name, more.clone());
        }
    }
    value
}

fn replaced(object: &Json, key: &str, value: Json) -> Json {
    let members = object.as_object().into_iter().flat_map(|object| object.iter().map(|(key, value)| (key, value.clone())));
    Json::object(members.chain([(key, value)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        text.parse().unwrap()
    }

    #[test]
    fn consecutive_texts_are_one() {
        let mut details = Details::default();
        assert_eq!(details.signature(), None);
        for detail in [
            r#"{"type":"reasoning.text","text":"a","id":null}"#,
            r#"{"type":"reasoning.text","text":"b","signature":"s","id":"i","index":2}"#,
            r#"{"type":"reasoning.encrypted","data":"z"}"#,
            r#"{"type":"reasoning.encrypted","data":"z"}"#,
            r#"{"type":"reasoning.summary","summary":"c"}"#,
            r#"{"type":"reasoning.summary","summary":"d","format":"f"}"#,
            r#"{"type":"reasoning.text","text":"e"}"#,
        ] {
            assert!(details.push(&json(detail), |_| Edges::default()), "{detail}");
        }
        for odd in
            ["1", "{}", r#"{"type":"reasoning.text"}"#, r#"{"type":"other","text":"a"}"#, r#"{"type":"reasoning.text","text":"a","id":1}"#]
        {
            assert!(!details.push(&json(odd), |_| Edges::default()), "{odd}");
        }
        let expected = r#"[{"type":"reasoning.text","text":"ab","id":"i","signature":"s","index":2},
            {"type":"reasoning.encrypted","data":"z"},{"type":"reasoning.encrypted","data":"z"},
            {"type":"reasoning.summary","summary":"cd","format":"f"},{"type":"reasoning.text","text":"e"}]"#;
        assert_eq!(json(&details.signature().unwrap()), json(expected));
    }
}
