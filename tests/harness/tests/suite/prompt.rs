//! Section L: the system prompt and tool deltas.

use std::sync::{Arc, Mutex};

use picofleet_harness::config::ConfigPatch;
use picofleet_harness::registry::{PromptInput, Registry};
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::ToolResult;
use picofleet_harness_tests::{Closure, Kit, Reply, scenario};
use picofleet_session::message::{Message, UserMessage};
use picofleet_session::{DraftHead, EditAction, EntryDraft, EntryId, EntryRecord, Json, Millis, SubmissionStatus};

fn object(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

async fn systems(kit: &Kit) -> Vec<Json> {
    let entries = kit.entries(&kit.root().await).await;
    let systems = entries.iter().filter(|entry| entry.kind == "pi.system");
    systems.map(|entry| Json::from_serde(&entry.model.as_ref().unwrap()[0]).unwrap()).collect()
}

async fn tools(kit: &Kit, names: &[&str]) {
    let active_tools = Some(names.iter().map(|&name| name.to_owned()).collect());
    kit.root().await.update(ConfigPatch { active_tools, ..ConfigPatch::default() }).await.unwrap();
}

fn names(message: &Json, list: &str) -> Vec<String> {
    let all = message.get(list).and_then(Json::as_array);
    all.map(|all| all.iter().map(|tool| tool.get("name").and_then(Json::as_str).unwrap().into_owned()).collect()).unwrap_or_default()
}

scenario!(s176_x085_only_what_changed_is_written, async |kit| {
    tools(&kit, &[]).await;
    let texts = Arc::new(Mutex::new([Some("1"), Some("1"), None]));
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        let texts = Arc::clone(&texts);
        kit.registry.section(name, false, move |_: &PromptInput| texts.lock().unwrap()[at].map(str::to_owned)).unwrap();
    }
    let set = |at: usize, text| texts.lock().unwrap()[at] = text;
    kit.turn("1", Reply::text("x")).await;
    kit.turn("2", Reply::text("x")).await;
    set(1, Some("2"));
    kit.turn("3", Reply::text("x")).await;
    set(2, Some("new"));
    kit.turn("4", Reply::text("x")).await;
    set(1, None);
    kit.turn("5", Reply::text("x")).await;
    let written: Vec<Json> = systems(&kit).await.iter().map(|system| system.get("sections").cloned().unwrap()).collect();
    let expected = [r#"{"a":"1","b":"1"}"#, r#"{"b":"2"}"#, r#"{"c":"new"}"#, r#"{"b":null}"#];
    assert_eq!(written, expected.map(object));
    assert!(systems(&kit).await.iter().all(|system| system.get("content") == Some(&Json::from(""))));
});

scenario!(s177_another_order_is_written_in_two_steps, async |kit| {
    tools(&kit, &[]).await;
    let shown = Arc::new(Mutex::new(true));
    let texts = Arc::clone(&shown);
    let section = |registry: &Registry, name: &'static str| {
        registry.section(name, false, move |_: &PromptInput| Some(name.to_owned())).unwrap();
    };
    section(&kit.registry, "a");
    kit.registry.section("b", false, move |_: &PromptInput| texts.lock().unwrap().then(|| "b".to_owned())).unwrap();
    section(&kit.registry, "c");
    kit.turn("1", Reply::text("x")).await;
    *shown.lock().unwrap() = false;
    kit.turn("2", Reply::text("x")).await;
    // It comes back in the middle.
    *shown.lock().unwrap() = true;
    kit.turn("3", Reply::text("x")).await;
    // Another build has the same sections in another order.
    kit.stop().await;
    kit.registry = Registry::new();
    for name in ["b", "c", "a"] {
        section(&kit.registry, name);
    }
    kit.reopen().await;
    kit.turn("4", Reply::text("x")).await;
    kit.turn("5", Reply::text("x")).await;
    let written: Vec<Json> = systems(&kit).await.iter().map(|system| system.get("sections").cloned().unwrap()).collect();
    let expected = [
        r#"{"a":"a","b":"b","c":"c"}"#,
        r#"{"b":null}"#,
        r#"{"a":null,"c":null}"#,
        r#"{"a":"a","b":"b","c":"c"}"#,
        r#"{"a":null,"b":null,"c":null}"#,
        r#"{"b":"b","c":"c","a":"a"}"#,
    ];
    assert_eq!(written.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
});

/// A summary of what is behind its head, as an application writes one.
async fn summarize(kit: &Kit, head: EntryId) {
    let message = Message::from(UserMessage { content: "summary".to_owned().into(), timestamp: Millis(0) });
    let entry = EntryDraft::new("summary").model(vec![message]).head(DraftHead::Entry(head));
    let written = kit.root().await.submit(SubmissionDraft::write(entry)).await.unwrap();
    assert_eq!(written.status().await.unwrap().status(), SubmissionStatus::Done);
}

fn edits(entry: &EntryRecord) -> Vec<EntryId> {
    let edits = entry.edits.as_ref().map_or(&[][..], |edits| &edits[..]);
    assert!(edits.iter().all(|edit| edit.action == EditAction::Omit), "{edits:?}");
    edits.iter().map(|edit| edit.target).collect()
}

scenario!(s178_a_new_context_begins_with_everything, async |kit| {
    tools(&kit, &["echo"]).await;
    let text = Arc::new(Mutex::new("1"));
    let shown = Arc::clone(&text);
    kit.registry.section("a", false, move |_: &PromptInput| Some((*shown.lock().unwrap()).to_owned())).unwrap();
    let set = |now| *text.lock().unwrap() = now;
    let of_kind = async |kind: &str| {
        let entries = kit.entries(&kit.root().await).await;
        entries.into_iter().filter(|entry| entry.kind == kind).collect::<Vec<_>>()
    };
    kit.turn("1", Reply::text("x")).await;
    let head = of_kind("pi.user").await[0].id;
    // Both markers leave the first entry of the system where it is; one more comes between them.
    summarize(&kit, head).await;
    set("2");
    kit.turn("2", Reply::text("x")).await;
    summarize(&kit, head).await;
    kit.turn("3", Reply::text("x")).await;
    let written = of_kind("pi.system").await;
    assert_eq!(written.len(), 3);
    let whole = systems(&kit).await;
    let everything = |system: &Json| (system.get("sections").cloned(), names(system, "toolsAdded"), names(system, "toolsRemoved"));
    let restated = |text: &str| (Some(object(&format!(r#"{{"a":"{text}"}}"#))), vec!["echo".to_owned()], Vec::new());
    assert_eq!(everything(&whole[1]), restated("2"), "everything behind the first marker");
    assert_eq!(edits(&written[1]), [written[0].id]);
    assert_eq!(everything(&whole[2]), restated("2"), "also where it says the same again");
    assert_eq!(edits(&written[2]), [written[0].id, written[1].id], "from both sides of the older marker");
    let asked = Json::from_serde(&kit.stage.asked().pop().unwrap().messages).unwrap();
    let roles = asked.as_array().unwrap().iter().filter(|message| message.get("role") == Some(&Json::from("system"))).count();
    assert_eq!(roles, 1, "the model sees one: {asked}");
    // The next change is a plain patch.
    set("3");
    kit.turn("4", Reply::text("x")).await;
    let (written, whole) = (of_kind("pi.system").await, systems(&kit).await);
    assert_eq!(everything(&whole[3]), (Some(object(r#"{"a":"3"}"#)), Vec::new(), Vec::new()));
    assert_eq!((written.len(), edits(&written[3])), (4, Vec::new()));
    // A reset retains nothing that would have to be hidden.
    kit.root().await.reset(Some("anew")).await.unwrap();
    kit.turn("5", Reply::text("x")).await;
    let (written, whole) = (of_kind("pi.system").await, systems(&kit).await);
    assert_eq!((everything(&whole[4]), edits(&written[4])), (restated("3"), Vec::new()));
});

/// A tool that says this about itself.
fn described(name: &str, description: &str) -> Closure {
    let mut tool = Closure::new(name, |_, _| async { Ok(ToolResult::default()) });
    tool.spec.description = description.to_owned();
    tool
}

scenario!(s179_tools_change_at_the_end_or_as_a_whole, async |kit| {
    let section = Arc::new(Mutex::new(None));
    let shown = Arc::clone(&section);
    kit.registry.section("a", false, move |_: &PromptInput| shown.lock().unwrap().clone()).unwrap();
    let change = async |names: &[&str], input: &str| {
        tools(&kit, names).await;
        kit.turn(input, Reply::text("x")).await;
    };
    let kept = ["one", "two", "three"].map(|name| kit.registry.tool(described(name, "as it was")).unwrap());
    change(&["one", "two"], "1").await;
    change(&["one", "two", "three"], "2").await;
    // The last tool is another one.
    kept[2].dispose();
    kit.registry.tool(described("three", "changed")).unwrap();
    change(&["one", "two", "three"], "3").await;
    // One in the middle is.
    kept[1].dispose();
    kit.registry.tool(described("two", "changed")).unwrap();
    change(&["one", "two", "three"], "4").await;
    // Another order, together with a section.
    *section.lock().unwrap() = Some("s".to_owned());
    change(&["three", "one", "two"], "5").await;
    change(&["three", "one"], "6").await;
    let systems = systems(&kit).await;
    let changes: Vec<_> = systems.iter().map(|system| (names(system, "toolsRemoved"), names(system, "toolsAdded"))).collect();
    let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let all = ["one", "two", "three"];
    let expected = [
        (list(&[]), list(&["one", "two"])),
        (list(&[]), list(&["three"])),
        (list(&["three"]), list(&["three"])),
        (list(&all), list(&all)),
        (list(&all), list(&["three", "one", "two"])),
        (list(&["two"]), list(&[])),
    ];
    assert_eq!(changes, expected);
    assert_eq!(systems[4].get("sections"), Some(&object(r#"{"a":"s"}"#)), "on the entry of the section");
    assert!(systems.iter().enumerate().all(|(at, system)| at == 4 || system.get("sections").is_none()));
});

scenario!(s181_system_messages_stay_where_they_were_appended, async |kit| {
    let text = Arc::new(Mutex::new("one"));
    let shown = Arc::clone(&text);
    kit.registry.section("part", true, move |_: &PromptInput| Some((*shown.lock().unwrap()).to_owned())).unwrap();
    kit.turn("a", Reply::text("x")).await;
    *text.lock().unwrap() = "two";
    kit.turn("b", Reply::text("x")).await;
    let asked = kit.stage.asked();
    let roles = |at: usize| -> Vec<String> {
        let role = |message| Json::from_serde(message).unwrap().get("role").and_then(Json::as_str).unwrap().into_owned();
        asked[at].messages.iter().map(role).collect()
    };
    assert_eq!(roles(0), ["user", "system"]);
    assert_eq!(roles(1), ["user", "system", "assistant", "user", "system"]);
});

scenario!(x064_an_unregistered_tool_is_removed_and_comes_back, async |kit| {
    let tool = || picofleet_harness_tests::Closure::new("mine", |_, _| async { Ok(picofleet_harness::tools::ToolResult::default()) });
    let registration = kit.registry.tool(tool()).unwrap();
    tools(&kit, &["echo", "mine"]).await;
    kit.turn("1", Reply::text("x")).await;
    registration.dispose();
    kit.turn("2", Reply::text("x")).await;
    kit.registry.tool(tool()).unwrap();
    kit.turn("3", Reply::text("x")).await;
    let systems = systems(&kit).await;
    assert_eq!((systems.len(), names(&systems[1], "toolsRemoved")), (3, vec!["mine".to_owned()]));
    assert_eq!(names(&systems[2], "toolsAdded"), ["mine"]);
    assert_eq!(kit.document("pi.conversation.config").await.get("activeTools"), Some(&object(r#"["echo","mine"]"#)));
});
