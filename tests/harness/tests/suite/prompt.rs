//! Section L: the system prompt and tool deltas.

use std::sync::{Arc, Mutex};

use picofleet_harness::config::ConfigPatch;
use picofleet_harness::registry::PromptInput;
use picofleet_harness_tests::{Kit, Reply, scenario};
use picofleet_session::Json;

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
    // A section that comes back in the middle: first all go, then all come in order.
    set(1, Some("3"));
    kit.turn("6", Reply::text("x")).await;
    let written: Vec<Json> = systems(&kit).await[4..].iter().map(|system| system.get("sections").cloned().unwrap()).collect();
    assert_eq!(written, [r#"{"a":null,"c":null}"#, r#"{"a":"1","b":"3","c":"new"}"#].map(object), "s177");
});

scenario!(s178_a_new_context_begins_with_everything, async |kit| {
    tools(&kit, &["echo"]).await;
    kit.registry.section("a", false, |_: &PromptInput| Some("1".to_owned())).unwrap();
    kit.turn("1", Reply::text("x")).await;
    kit.root().await.reset(Some("anew")).await.unwrap();
    kit.turn("2", Reply::text("x")).await;
    let systems = systems(&kit).await;
    assert_eq!(systems.len(), 2);
    assert_eq!((systems[1].get("sections"), names(&systems[1], "toolsAdded")), (Some(&object(r#"{"a":"1"}"#)), vec!["echo".to_owned()]));
});

scenario!(s179_tools_change_at_the_end_or_as_a_whole, async |kit| {
    let change = async |names: &[&str], input: &str| {
        tools(&kit, names).await;
        kit.turn(input, Reply::text("x")).await;
    };
    change(&["echo", "output"], "1").await;
    change(&["echo", "output", "fail"], "2").await;
    change(&["fail", "echo", "output"], "3").await;
    change(&["fail", "echo"], "4").await;
    let systems = systems(&kit).await;
    let changes: Vec<_> = systems.iter().map(|system| (names(system, "toolsRemoved"), names(system, "toolsAdded"))).collect();
    let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(changes[0], (list(&[]), list(&["echo", "output"])));
    assert_eq!(changes[1], (list(&[]), list(&["fail"])));
    assert_eq!(changes[2].1, list(&["fail", "echo", "output"]));
    assert_eq!(changes[2].0.len(), 3);
    assert_eq!(changes[3], (list(&["output"]), list(&[])));
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
