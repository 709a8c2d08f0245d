//! The rules of section 7.1, one test each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::BoxFuture;
use picofleet_session::{ConversationRecord, Json, Tx, TxError};

use super::*;
use crate::hooks::{GenerationHooks, GenerationTask, HookError, HookScope, ToolHooks, ToolTask};
use crate::tools::{SharedTool, Tool, ToolApi, ToolError, ToolResult, ToolSpec};

struct Named(ToolSpec);

fn tool(name: &str) -> Named {
    described(name, "")
}

fn described(name: &str, description: &str) -> Named {
    Named(ToolSpec::new(name, description, Json::object::<&str, Json>([])))
}

impl Tool for Named {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn execute<'a>(&'a self, _arguments: Json, _api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async { Ok(ToolResult::default()) })
    }
}

/// A wrapper that appends to the description.
fn append(text: &'static str) -> impl Fn(SharedTool) -> Result<SharedTool, ToolError> + Send + Sync + 'static {
    move |base| Ok(Arc::new(described(&base.spec().name, &format!("{}{text}", base.spec().description))) as SharedTool)
}

fn description(registry: &Registry, name: &str) -> Option<String> {
    registry.snapshot().tool(name).map(|tool| tool.spec().description.clone())
}

fn names(registry: &Registry) -> Vec<String> {
    registry.snapshot().tools().map(|tool| tool.spec().name.clone()).collect()
}

fn duplicate(what: &'static str, name: &str) -> RegistryError {
    RegistryError::Duplicate { what, name: name.to_owned() }
}

fn keys(registry: &Registry) -> Vec<String> {
    registry.snapshot().sections().iter().map(|section| section.key.clone()).collect()
}

struct Marked;

impl GenerationHooks for Marked {}
impl ToolHooks for Marked {}

struct Nothing;

impl ConversationSetup for Nothing {
    fn setup<'a>(&'a self, _: &'a Tx, _: &'a ConversationRecord, _: &'a [String]) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(async { Ok(()) })
    }
}

#[test]
fn every_call_outside_a_batch_publishes_at_once_and_wakes_subscribers() {
    let registry = Registry::new();
    let changes = registry.subscribe();
    let before = registry.snapshot();
    registry.tool(tool("a")).unwrap();
    assert!(changes.has_changed().unwrap());
    assert_eq!((*changes.borrow(), names(&registry)), (1, vec!["a".to_owned()]));
    assert_eq!(before.tool_names(), Vec::<String>::new(), "a snapshot never changes");
}

#[test]
fn names_and_keys_are_unique_where_they_belong() {
    let registry = Registry::new();
    registry.tool(tool("a")).unwrap();
    assert_eq!(registry.tool(tool("a")).err(), Some(duplicate("tool", "a")));
    registry.wrap_tool("a", "k", append("1")).unwrap();
    assert_eq!(registry.wrap_tool("a", "k", append("2")).err(), Some(duplicate("tool wrapper", "k")));
    registry.wrap_tool("b", "k", append("3")).unwrap();
    registry.section("s", true, |_| None).unwrap();
    assert_eq!(registry.section("s", true, |_| None).err(), Some(duplicate("section", "s")));
    registry.wrap_section("s", "k", Ok).unwrap();
    assert_eq!(registry.wrap_section("s", "k", Ok).err(), Some(duplicate("section wrapper", "k")));
    registry.hooks::<GenerationTask>(Some("k"), None, Arc::new(Marked)).unwrap();
    assert_eq!(registry.hooks::<GenerationTask>(Some("k"), None, Arc::new(Marked)).err(), Some(duplicate("hook key", "k")));
    registry.hooks::<ToolTask>(Some("k"), None, Arc::new(Marked)).unwrap();
    registry.setup("s", Nothing).unwrap();
    assert_eq!(registry.setup("s", Nothing).err(), Some(duplicate("setup", "s")));
    assert_eq!(description(&registry, "a").as_deref(), Some("1"), "what was refused changed nothing");
}

#[test]
fn built_in_tasks_and_the_pi_setup_are_there_and_reserved() {
    let registry = Registry::new();
    let snapshot = registry.snapshot();
    assert_eq!(snapshot.task_names().collect::<Vec<_>>(), ["pi.generation", "pi.tool", "pi.compaction"]);
    assert_eq!(registry.setup("pi", Nothing).err(), Some(duplicate("setup", "pi")));
    registry.setup("app", Nothing).unwrap();
    let snapshot = registry.snapshot();
    assert_eq!(snapshot.setups().iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["pi", "app"]);
}

#[test]
fn section_keys_match_their_pattern() {
    let registry = Registry::new();
    for key in ["a", "a1", "a-b_c"] {
        registry.section(key, true, |_| None).unwrap();
    }
    for key in ["", "A", "1a", "-a", "_a", "a b", "aB", "ä", "a."] {
        assert_eq!(registry.section(key, true, |_| None).err(), Some(RegistryError::InvalidKey(key.to_owned())));
    }
    assert_eq!(keys(&registry), ["a", "a1", "a-b_c"]);
}

#[test]
fn positions_of_keys_are_remembered_for_ever() {
    let registry = Registry::new();
    let a = registry.section("a", true, |_| None).unwrap();
    registry.section("b", true, |_| None).unwrap();
    a.dispose();
    registry.section("c", true, |_| None).unwrap();
    assert_eq!(keys(&registry), ["b", "c"]);
    registry.section("a", true, |_| None).unwrap();
    assert_eq!(keys(&registry), ["a", "b", "c"]);
    registry.wrap_tool("t", "first", append("1")).unwrap().dispose();
    registry.wrap_tool("t", "second", append("2")).unwrap();
    registry.wrap_tool("t", "first", append("1")).unwrap();
    registry.tool(tool("t")).unwrap();
    assert_eq!(description(&registry, "t").as_deref(), Some("12"));
}

#[test]
fn hooks_without_a_key_append_and_keyed_ones_keep_their_place() {
    let registry = Registry::new();
    let scope = |id| Some(HookScope::conversation(picofleet_session::ConversationId::new(id).unwrap()));
    let order = || -> Vec<i64> {
        let hooks = registry.snapshot().hooks::<GenerationTask>();
        hooks.iter().map(|hooks| hooks.scope.map_or(0, |scope| scope.conversation.get())).collect()
    };
    let keyed = registry.hooks::<GenerationTask>(Some("k"), scope(1), Arc::new(Marked)).unwrap();
    let free = registry.hooks::<GenerationTask>(None, scope(2), Arc::new(Marked)).unwrap();
    registry.hooks::<GenerationTask>(None, scope(3), Arc::new(Marked)).unwrap();
    assert_eq!(order(), [1, 2, 3]);
    keyed.dispose();
    free.dispose();
    registry.hooks::<GenerationTask>(None, scope(2), Arc::new(Marked)).unwrap();
    registry.hooks::<GenerationTask>(Some("k"), scope(1), Arc::new(Marked)).unwrap();
    assert_eq!(order(), [1, 3, 2]);
    assert_eq!(registry.snapshot().hooks::<ToolTask>().len(), 0, "hooks are found by the name of their task");
}

#[test]
fn a_batch_is_published_once_whatever_the_order_inside() {
    let registry = Registry::new();
    let old = registry.tool(described("grep", "old")).unwrap();
    registry.tool(tool("other")).unwrap();
    let changes = registry.subscribe();
    let ((), _) = registry
        .batch(|stage| {
            stage.tool(described("grep", "new"))?;
            stage.dispose(&old)?;
            assert_eq!(description(&registry, "grep").as_deref(), Some("old"), "nothing is published before the end");
            Ok(())
        })
        .unwrap();
    assert_eq!(description(&registry, "grep").as_deref(), Some("new"));
    assert_eq!(names(&registry), ["grep", "other"]);
    assert_eq!(*changes.borrow(), 3);
}

#[test]
fn a_batch_that_fails_publishes_nothing_and_keeps_what_it_disposed() {
    let registry = Registry::new();
    let old = registry.tool(tool("a")).unwrap();
    let thrown = registry.batch(|stage| {
        stage.dispose(&old)?;
        stage.tool(tool("b"))?;
        Err::<(), _>(RegistryError::Rejected("no".into()))
    });
    assert_eq!(thrown.err(), Some(RegistryError::Rejected("no".into())));
    let invalid = registry.batch(|stage| {
        old.dispose();
        stage.tool(tool("b"))?;
        stage.tool(tool("b"))
    });
    assert_eq!(invalid.err(), Some(duplicate("tool", "b")));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = registry.batch(|stage| -> Result<(), RegistryError> {
            stage.dispose(&old)?;
            panic!("extension");
        });
    }));
    assert!(panicked.is_err());
    assert_eq!((names(&registry), *registry.subscribe().borrow()), (vec!["a".to_owned()], 1));
    registry.tool(tool("b")).unwrap();
    old.dispose();
    assert_eq!(names(&registry), ["b"]);
}

#[test]
fn a_batch_inside_a_batch_is_an_error() {
    let registry = Registry::new();
    let nested = registry.batch(|stage| {
        stage.tool(tool("a"))?;
        registry.batch(|_| Ok(())).map(|_| ())
    });
    assert_eq!(nested.err(), Some(RegistryError::Nested));
    assert_eq!(names(&registry), Vec::<String>::new());
}

#[test]
fn what_the_registry_itself_gets_inside_a_batch_belongs_to_it() {
    let registry = Registry::new();
    let failed = registry.batch(|_| {
        registry.tool(tool("a"))?;
        Err::<(), _>(RegistryError::Rejected("no".into()))
    });
    assert!(failed.is_err());
    assert_eq!(names(&registry), Vec::<String>::new());
}

#[test]
fn a_registration_covers_what_was_added_and_not_disposed_inside() {
    let registry = Registry::new();
    let kept = registry.tool(tool("kept")).unwrap();
    let (gone, all) = registry
        .batch(|stage| {
            stage.tool(tool("a"))?;
            stage.section("s", true, |_| None)?;
            let gone = stage.tool(tool("gone"))?;
            stage.dispose(&gone)?;
            Ok(gone)
        })
        .unwrap();
    registry.tool(tool("gone")).unwrap();
    gone.dispose();
    assert_eq!(names(&registry), ["kept", "a", "gone"], "a registration that is over removes nothing of others");
    all.dispose();
    all.dispose();
    assert_eq!((names(&registry), keys(&registry)), (vec!["kept".to_owned(), "gone".to_owned()], Vec::new()));
    registry.tool(tool("a")).unwrap();
    all.dispose();
    assert_eq!(names(&registry), ["kept", "a", "gone"], "what is registered again is not covered");
    kept.dispose();
    let other = Registry::new();
    let foreign = other.tool(tool("x")).unwrap();
    assert_eq!(registry.batch(|stage| stage.dispose(&foreign)).err(), Some(RegistryError::Foreign));
}

#[test]
fn wrappers_compose_the_present_base_in_the_order_of_their_keys() {
    let registry = Registry::new();
    registry.wrap_tool("t", "x", append("x")).unwrap();
    assert_eq!(description(&registry, "t"), None, "a wrapper without a base contributes nothing");
    let base = registry.tool(described("t", "1")).unwrap();
    registry.wrap_tool("t", "y", append("y")).unwrap();
    assert_eq!(description(&registry, "t").as_deref(), Some("1xy"));
    base.dispose();
    registry.tool(described("t", "2")).unwrap();
    assert_eq!(description(&registry, "t").as_deref(), Some("2xy"), "a wrapper never captures a base");
}

#[test]
fn a_wrapper_that_fails_makes_its_tool_absent_and_is_listed() {
    let registry = Registry::new();
    for name in ["ok", "err", "panic", "rename"] {
        registry.tool(tool(name)).unwrap();
    }
    registry.wrap_tool("err", "k", |_| Err(ToolError::new("broken"))).unwrap();
    registry.wrap_tool("panic", "k", |_| panic!("boom")).unwrap();
    registry.wrap_tool("rename", "k", |_| Ok(Arc::new(tool("ok2")) as SharedTool)).unwrap();
    let snapshot = registry.snapshot();
    assert_eq!(names(&registry), ["ok"]);
    assert_eq!(snapshot.tool_names(), ["ok", "err", "panic", "rename"]);
    assert!(snapshot.tool("err").is_none() && snapshot.offered(&["err".into(), "ok".into()]).len() == 1);
    let failures: Vec<String> = snapshot.failures().iter().map(ToString::to_string).collect();
    assert_eq!(failures.len(), 3);
    assert_eq!(failures[0], r#"tool "err" is absent because a wrapper failed: broken"#);
    assert!(failures[1].contains("boom") && failures[2].contains("ok2"), "{failures:?}");
}

#[test]
fn a_wrapper_that_fails_makes_its_section_absent_and_is_listed() {
    let registry = Registry::new();
    registry.section("a", true, |_| None).unwrap();
    registry.section("b", true, |_| None).unwrap();
    registry.section("c", true, |_| None).unwrap();
    registry.wrap_section("a", "k", |section| Ok(Section { tag: false, ..section })).unwrap();
    registry.wrap_section("b", "k", |_| Err(HookError::new("broken"))).unwrap();
    registry.wrap_section("c", "k", |section| Ok(Section { key: "d".into(), ..section })).unwrap();
    let snapshot = registry.snapshot();
    assert_eq!(keys(&registry), ["a"]);
    assert!(!snapshot.sections()[0].tag);
    assert_eq!(
        snapshot.failures().iter().map(|failure| (failure.kind, failure.name.as_str())).collect::<Vec<_>>(),
        [(FailureKind::Section, "b"), (FailureKind::Section, "c")]
    );
}

#[test]
fn a_publication_runs_no_code_of_an_extension() {
    let registry = Registry::new();
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    registry.tool(tool("t")).unwrap();
    registry
        .wrap_tool("t", "k", move |tool| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(tool)
        })
        .unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let snapshot = registry.snapshot();
    assert!(snapshot.tool("t").is_some() && snapshot.tool("t").is_some());
    assert_eq!(calls.load(Ordering::SeqCst), 1, "composed once a snapshot");
}

#[test]
fn changes_of_other_threads_during_a_batch_are_not_lost() {
    let registry = Registry::new();
    let (begun, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let other = registry.clone();
    let thread = std::thread::spawn(move || {
        wait.recv().unwrap();
        other.tool(tool("late")).unwrap();
    });
    registry
        .batch(|stage| {
            stage.tool(tool("a"))?;
            begun.send(()).unwrap();
            stage.tool(tool("b"))
        })
        .unwrap();
    thread.join().unwrap();
    let mut names = names(&registry);
    names.sort();
    assert_eq!(names, ["a", "b", "late"]);
}
