//! Section K: manual compaction, the request for a summary, and what becomes of its answer.

use std::sync::Arc;

use picofleet_harness::compaction::{CompactionReason, CompactionResult};
use picofleet_harness::config::RetryPolicy;
use picofleet_harness::hooks::{CompactionChoice, CompactionTask, HookError};
use picofleet_harness::host::{ConversationOptions, HostError};
use picofleet_harness::kind::Outcome;
use picofleet_harness_tests::{Asked, AskedCompaction, Kit, Reply, scenario};
use picofleet_models::model::ThinkingLevel;
use picofleet_models::provider::CacheRetention;
use picofleet_session::message::{Message, TextOrBlocks};
use picofleet_session::{ConversationId, Json, Millis, SubmissionState, WriteState};

use super::compaction_kit::{compacted, context, entry, history, keep, policy, result, shown, spent, statuses, summarizing, words};
use super::empty;

/// The text of a request for a summary, behind its system prompt.
fn prompt(asked: &Asked) -> String {
    let [Message::System(_), Message::User(user)] = asked.messages.as_slice() else { panic!("{asked:?}") };
    let TextOrBlocks::Text(text) = &user.content else { panic!("no text") };
    text.clone()
}

scenario!(s158_a_summary_takes_the_place_of_what_is_older, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let root = kit.root().await;
    let before = kit.entries(&root).await;
    kit.stage.give(Reply::text("SUMMARY"));
    let task = root.compact(None).await.unwrap();
    let CompactionResult { entry_id: None, submission_id: Some(write) } = result(&kit, task).await else { panic!("nothing") };
    let record = kit.harness().submission(write).await.unwrap().unwrap().status().await.unwrap();
    assert_eq!(record.request_id, Some(format!("compaction:{task}")));
    let after = kit.entries(&root).await;
    let (marker, rest) = after.split_last().unwrap();
    assert_eq!(rest, before, "what is stored stays as it is");
    assert_eq!(record.state, SubmissionState::Write(WriteState::Done { entry: marker.id }));
    assert_eq!((marker.kind.as_str(), marker.head), ("pi.compaction", Some(entry(&kit, "u3").await.id)));
    assert_eq!(marker.data.as_ref().unwrap().to_string(), r#"{"reason":"manual"}"#);
    assert_eq!(marker.by_task_id, Some(task.erase()));
    let model = Json::from_serde(&marker.model).unwrap().to_string();
    let wrapped =
        "The conversation history before this point was compacted into the following summary:\\n\\n<summary>\\nSUMMARY\\n</summary>";
    let at = kit.clock.now().0;
    assert_eq!(model, format!(r#"[{{"role":"user","content":[{{"type":"text","text":"{wrapped}"}}],"timestamp":{at}}}]"#));
    assert_eq!(context(&kit).await, ["<SUMMARY>", "u3", "a3"]);
    let text = prompt(kit.stage.asked().last().unwrap());
    for (name, summarized) in [("u1", true), ("a2", true), ("u3", false), ("a3", false)] {
        assert_eq!(text.contains(&words(name)), summarized, "{name}");
    }
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(s160_with_nothing_to_compact_nothing_is_asked, async |kit| {
    history(&kit, 3).await;
    let root = kit.root().await;
    let nothing = async |kit: &Kit| {
        let asked = kit.stage.asked().len();
        let task = root.compact(None).await.unwrap();
        assert_eq!(result(kit, task).await, CompactionResult::default());
        let stored = Json::from_serde(&kit.task(task.erase()).await).unwrap().to_string();
        assert!(stored.contains(r#""outcome":{"status":"completed","result":{}}"#), "{stored}");
        assert_eq!(kit.stage.asked().len(), asked);
        assert_eq!(kit.document("pi.live").await, empty());
    };
    // The sum never reaches what is to stay.
    nothing(&kit).await;
    // Only the marker is before the cut.
    keep(&kit, 150).await;
    kit.stage.give(Reply::text("SUMMARY"));
    compacted(&kit).await;
    nothing(&kit).await;
});

scenario!(s161_the_request_for_a_summary, async |kit| {
    let root = kit.root().await;
    kit.stage.give(Reply::call("c1", "echo", &format!(r#"{{"text":"{}"}}"#, "r".repeat(3_000))).thinking("I think"));
    kit.turn("u1", Reply::text("a1")).await;
    history(&kit, 2).await;
    keep(&kit, 150).await;
    root.set_thinking_level(ThinkingLevel::High).await.unwrap();
    let options = br#"{"timeoutMs":500,"cacheRetention":"long","deferred":true}"#;
    root.set_stream_options(Json::parse(options).unwrap()).await.unwrap();
    for (reserve, model_max, expected) in [(1_000, 1_000, 800), (2_000, 900, 900), (1_001, 0, 800)] {
        policy(&kit, |policy| policy.reserve_tokens = reserve).await;
        kit.stage.change_model(|model| model.max_tokens = model_max);
        kit.stage.give(Reply::error("401 no"));
        let task = root.compact(Some("the files")).await.unwrap();
        assert!(matches!(kit.outcome(task).await, Outcome::Failed { .. }));
        let asked = kit.stage.asked().pop().unwrap();
        assert_eq!(asked.options.max_tokens, Some(expected));
        assert_eq!(asked.options.reasoning, Some(ThinkingLevel::High));
        assert_eq!(asked.options.cache_retention, Some(CacheRetention::None));
        assert_eq!((asked.options.deferred, asked.options.timeout_ms), (None, Some(500)));
        let Message::System(system) = &asked.messages[0] else { panic!("no system message") };
        assert_eq!((&system.tools_added, &system.sections), (&None, &None));
    }
    let text = prompt(kit.stage.asked().last().unwrap());
    assert!(
        text.starts_with("<conversation>\n[User]: u1\n\n[Assistant thinking]: I think\n\n[Assistant tool calls]: echo(text=\"rrr"),
        "{text}"
    );
    assert!(text.ends_with("\n\nAdditional focus: the files"), "{text}");
    let result = text.split("[Tool result]: ").nth(1).unwrap().split("\n\n").next().unwrap();
    assert_eq!(result.matches('r').count() - "more characters".matches('r').count(), 2_000, "{result}");
    assert!(text.contains("\n\n[Assistant]: a1\n\n[User]: u1 w") && text.contains("\n</conversation>\n\n"), "{text}");
    assert!(!text.contains("system"), "system messages are left out");
});

scenario!(s173_a_summary_is_asked_for_again_or_fails, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let root = kit.root().await;
    let before = (spent(&kit).await, kit.stage.asked().len());
    kit.stage.give(Reply::error("503 overloaded"));
    let task = root.compact(None).await.unwrap();
    let paused = async || statuses(&root).await.iter().any(|status| status.retry.is_some());
    kit.until("a pause", paused).await;
    let status = statuses(&root).await.remove(0);
    let until = kit.clock.now().0 + 2_000;
    let retry = status.retry.clone().unwrap();
    assert_eq!((retry.at, retry.error.as_str()), (Millis(until), "503 overloaded"));
    assert_eq!((status.task_id, status.reason, status.blocking, status.attempt), (task.erase(), CompactionReason::Manual, false, 1));
    let stored = Json::from_serde(&kit.task(task.erase()).await.state).unwrap().to_string();
    assert!(
        stored.starts_with(&format!(r#"{{"status":"sleeping","checkpoint":{{"phase":"retry","until":{until},"attempt":1,"#)),
        "{stored}"
    );
    // What is configured meanwhile is not looked at.
    root.set_thinking_level(ThinkingLevel::High).await.unwrap();
    policy(&kit, |policy| policy.reserve_tokens = 10).await;
    kit.turn(&words("u4"), Reply::text("a4")).await;
    kit.stage.give(Reply::text("SUMMARY").held());
    kit.advance(2_000);
    kit.until("the second request", async || kit.stage.asked().len() == before.1 + 3).await;
    let status = statuses(&root).await.remove(0);
    assert_eq!((status.attempt, status.retry), (2, None));
    kit.stage.release();
    result(&kit, task).await;
    let asked = kit.stage.asked();
    assert_eq!(asked[before.1].messages, asked[before.1 + 2].messages);
    assert_eq!(asked[before.1].options, asked[before.1 + 2].options);
    assert_eq!(spent(&kit).await, before.0 + 3 * 15, "both attempts and the turn, each once");
    assert_eq!(context(&kit).await[..3], ["<SUMMARY>", "u3", "a3"]);
});

scenario!(s173_a_summary_that_is_none_fails, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let root = kit.root().await;
    root.set_retry_policy(Some(RetryPolicy { max_retries: 0, ..RetryPolicy::default() })).await.unwrap();
    let call = Reply::call("c1", "echo", "{}");
    let replies =
        [Reply::text("S").cut(), call, Reply::text(""), Reply::text("  \n"), Reply::error("401 no"), Reply::error("503 overloaded")];
    for reply in replies {
        let before = spent(&kit).await;
        kit.stage.give(reply.clone());
        let task = root.compact(None).await.unwrap();
        let Outcome::Failed { error, .. } = kit.outcome(task).await else { panic!("not failed: {reply:?}") };
        let detail = error.detail.unwrap();
        assert_eq!(detail.get("reason").unwrap().as_str().unwrap(), "model_error", "{reply:?}");
        assert_eq!(spent(&kit).await, before + 15, "{reply:?}");
        assert_eq!(kit.document("pi.live").await, empty());
    }
    root.set_model(None).await.unwrap();
    let task = root.compact(None).await.unwrap();
    let Outcome::Failed { error, .. } = kit.outcome(task).await else { panic!("not failed") };
    assert_eq!(error.detail.unwrap().to_string(), r#"{"reason":"no_model"}"#);
    assert!(!kit.kinds().await.contains(&"pi.compaction".to_owned()));
});

scenario!(x079_an_earlier_summary_is_summarized_first, async |kit| {
    // Without tools the system entry among the newest ones is small.
    kit.root().await.set_active_tools(Vec::<String>::new()).await.unwrap();
    history(&kit, 3).await;
    keep(&kit, 150).await;
    kit.stage.give(Reply::text("FIRST"));
    compacted(&kit).await;
    kit.turn(&words("u4"), Reply::text(&words("a4"))).await;
    kit.stage.give(Reply::text("SECOND"));
    compacted(&kit).await;
    let text = prompt(kit.stage.asked().last().unwrap());
    let earlier = "<conversation>\n[User]: The conversation history before this point was compacted into the following summary:\n\n<summary>\nFIRST\n</summary>\n\n[User]: u3";
    assert!(text.starts_with(earlier), "{text}");
    assert!(text.contains(&words("a3")) && !text.contains("u4"), "{text}");
    assert_eq!(context(&kit).await, ["<SECOND>", "u4", "system", "a4"]);
});

scenario!(x082_a_fork_compacts_what_it_inherited, async |kit| {
    // A fork has the configuration of the entry that it begins at.
    keep(&kit, 350).await;
    history(&kit, 3).await;
    let root = kit.root().await;
    let before = kit.entries(&root).await;
    let at = before.last().unwrap().id;
    let fork = root.fork(at, ConversationOptions::ownerless()).await.unwrap();
    kit.stage.give(Reply::text("SUMMARY"));
    let task = fork.compact(None).await.unwrap();
    result(&kit, task).await;
    assert_eq!(kit.entries(&root).await, before);
    assert_eq!(shown(&root.context().await.unwrap().messages).len(), 7);
    let view = fork.context().await.unwrap();
    let marker = view.head.clone().unwrap();
    assert_eq!((marker.conversation_id, marker.head), (fork.id(), Some(entry(&kit, "u2").await.id)));
    assert_eq!(shown(&view.messages), ["<SUMMARY>", "u2", "a2", "u3", "a3"]);
    let all = kit.entries(&fork).await;
    let from = all.iter().position(|entry| Some(entry.id) == marker.head).unwrap();
    let active: Vec<_> = std::iter::once(marker).chain(all[from..all.len() - 1].iter().cloned().map(Arc::new)).collect();
    assert_eq!(view.entries, active);
    assert_eq!(fork.usage().await.unwrap().models["p/m"].total_tokens, 15, "the fork's own spend");
});

scenario!(x083_statuses_are_in_the_order_of_their_tasks_and_end_with_them, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let root = kit.root().await;
    let mut tasks = Vec::new();
    for reply in [Reply::text("A"), Reply::text("B").broken(), Reply::text("C")] {
        tasks.push(summarizing(&kit, reply).await);
    }
    let shown = async || statuses(&root).await.iter().map(|status| status.task_id).collect::<Vec<_>>();
    assert_eq!(shown().await, tasks.iter().map(|task| task.erase()).collect::<Vec<_>>());
    assert!(tasks.is_sorted());
    kit.stage.release();
    kit.stage.release();
    result(&kit, tasks[0]).await;
    assert!(matches!(kit.outcome(tasks[1]).await, Outcome::Faulted(_)));
    assert_eq!(shown().await, [tasks[2].erase()]);

    // Without a definition its abort is an orphan.
    let tasks_of_the_line = kit.tasks.clone();
    let mut without = kit.tasks.clone();
    without.remove("pi.compaction");
    kit.set_tasks(without).await;
    let harness = kit.harness();
    let task = tasks[2].erase();
    let abort = tokio::spawn(async move { harness.abort_task(task).await });
    assert!(matches!(kit.outcome(tasks[2]).await, Outcome::Orphaned { .. }));
    abort.await.unwrap().unwrap();
    assert_eq!(kit.document("pi.live").await, empty());
    kit.set_tasks(tasks_of_the_line).await;
});

scenario!(a_manual_compaction_is_work_of_its_conversation, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let root = kit.root().await;
    let before = spent(&kit).await;
    let task = summarizing(&kit, Reply::text("SUMMARY")).await;
    root.abort(false).await.unwrap();
    assert!(matches!(kit.outcome(task).await, Outcome::Aborted { .. }));
    assert_eq!(kit.document("pi.live").await, empty());
    assert_eq!(spent(&kit).await, before, "what was not answered is not counted");
    assert!(!kit.kinds().await.contains(&"pi.compaction".to_owned()));
    let missing = ConversationId::new(999).unwrap();
    let call = picofleet_harness::wire::HostCall::Compact { conversation: missing, instructions: None };
    let answer = kit.call(picofleet_harness::wire::Request::Host(Box::new(call))).await;
    let picofleet_harness::wire::Answer::Failed(failure) = answer else { panic!("{answer:?}") };
    assert!(matches!(HostError::from(failure), HostError::NotFound { .. }));
});

scenario!(an_abort_in_a_pause_needs_no_worker, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let root = kit.root().await;
    kit.stage.give(Reply::error("503 overloaded"));
    let task = root.compact(None).await.unwrap();
    kit.until("a pause", async || statuses(&root).await.iter().any(|status| status.retry.is_some())).await;
    kit.faults.cut();
    kit.harness().abort_task(task.erase()).await.unwrap();
    assert!(matches!(kit.outcome(task).await, Outcome::Aborted { .. }));
    assert_eq!(kit.document("pi.live").await, empty());
    kit.faults.mend();
});

scenario!(a_hook_decides_about_a_compaction, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let root = kit.root().await;
    let expected: Vec<_> = kit.entries(&root).await.into_iter().map(Arc::new).collect();
    let kept = entry(&kit, "u3").await.id;
    let add = |hook: AskedCompaction| kit.registry.hooks::<CompactionTask>(None, None, Arc::new(hook)).unwrap();
    let failing = add(AskedCompaction::new(|_| Err(HookError::new("no idea"))));
    let declines = add(AskedCompaction::new(move |request| {
        assert_eq!(request.entries, expected[..expected.len() - 2]);
        assert_eq!(shown(&request.messages), ["u1", "system", "a1", "u2", "a2"]);
        assert_eq!((request.reason, request.first_kept), (CompactionReason::Manual, kept));
        assert_eq!(request.instructions.as_deref(), Some("focus"));
        Ok(Some(CompactionChoice::Decline))
    }));
    let asked = kit.stage.asked().len();
    let task = root.compact(Some("focus")).await.unwrap();
    assert_eq!(result(&kit, task).await, CompactionResult::default());
    assert_eq!(kit.reported(), ["no idea"]);
    declines.dispose();
    failing.dispose();
    add(AskedCompaction::new(|_| Ok(Some(CompactionChoice::Summary("OWN".to_owned())))));
    add(AskedCompaction::new(|_| panic!("the first decision wins")));
    compacted(&kit).await;
    assert_eq!(context(&kit).await, ["<OWN>", "u3", "a3"]);
    assert_eq!(kit.stage.asked().len(), asked, "no model was asked");
});

scenario!(a_summary_that_does_not_shrink_the_context_is_reported, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    kit.stage.give(Reply::text("SUMMARY"));
    compacted(&kit).await;
    assert_eq!(kit.reported(), [""; 0]);
    kit.turn(&words("u4"), Reply::text(&words("a4"))).await;
    kit.stage.give(Reply::text(&"long ".repeat(400)));
    compacted(&kit).await;
    let [report] = kit.reported().try_into().unwrap();
    assert!(report.contains("does not shrink"), "{report}");
});
