//! Phases and their commits (section 5.1): what an invocation may do, and that it may do nothing once it is over.

use std::sync::{Arc, Mutex};

use picofleet_harness::effects::Fault;
use picofleet_harness::host::{AbortTask, HostError};
use picofleet_harness::kind::{Next, Outcome};
use picofleet_harness::registry::Registry;
use picofleet_harness::runtime::TaskRuntime;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::ToolResult;
use picofleet_harness_tests::script::{Log, Script, at, end, fault, go, phase, put};
use picofleet_harness_tests::{Closure, Gate, Kit, scenario};
use picofleet_session::storage::Write;
use picofleet_session::{EntryDraft, EntryId, Json, Millis, ROOT_CONVERSATION_ID, TaskId, TaskOutcome, TaskState};

/// Runs one task of a script to its end.
async fn ran(kit: &mut Kit, script: Script) -> (TaskId<Json>, Outcome<Json>) {
    let id = kit.begin(script, String::new()).await;
    (id, kit.outcome(id).await)
}

scenario!(s061_one_reservation_and_one_invocation_run_every_phase, async |kit| {
    let log = Log::default();
    let script = Script::new(&log, |task, runtime| async move {
        let n = task.checkpoint.get("n").and_then(Json::as_i64).unwrap_or(-1);
        let next = Json::object([("phase", Json::from("step")), ("n", Json::from(n + 1))]);
        if n < 2 { put(&runtime, Next::Checkpoint(next)).await } else { end(&runtime, n).await }
    });
    let script = script.first(Json::object([("phase", Json::from("step")), ("n", Json::from(0))]));
    let (id, outcome) = ran(&mut kit, script).await;
    assert_eq!(outcome, Outcome::Completed(2.into()));
    assert_eq!(log.words(), ["step", "step", "step"]);

    let writes = kit.disk.writes();
    let rows = writes.iter().filter_map(|write| if let Write::Invocation(row) = write { Some(row) } else { None });
    let rows: Vec<_> = rows.filter(|row| row.task_id == id.erase()).collect();
    assert_eq!(rows.iter().filter(|row| row.number == 0).count(), 1, "one reservation");
    assert!(rows.iter().all(|row| row.invocation == rows[0].invocation), "one invocation");
    let seen = kit.disk.records(id.erase()).into_iter().filter_map(|record| match record.state {
        TaskState::Running { checkpoint } => checkpoint.get("n").and_then(Json::as_i64),
        _ => None,
    });
    let mut seen: Vec<i64> = seen.collect();
    seen.dedup();
    assert_eq!(seen, [0, 1, 2]);
    // What is over stays as it is.
    let record = kit.task(id.erase()).await;
    assert_eq!(record.state, TaskState::Terminal { outcome: TaskOutcome::Completed { result: 2.into() } });
    assert_eq!(record.restarts, 0);
    kit.reopen().await;
    assert_eq!(kit.task(id.erase()).await, record);
});

scenario!(s062_a_phase_without_progress_faults, async |kit| {
    let (_, outcome) = ran(&mut kit, Script::new(&Log::default(), |_, _| async { Ok(()) })).await;
    assert!(matches!(&outcome, Outcome::Faulted(error) if error.message.contains("without durable progress")), "{outcome:?}");
});

scenario!(s062_a_phase_that_throws_faults, async |kit| {
    let (_, outcome) = ran(&mut kit, Script::new(&Log::default(), |_, _| async { Err(fault("boom")) })).await;
    assert!(matches!(&outcome, Outcome::Faulted(error) if error.message == "boom"), "{outcome:?}");
});

scenario!(s063_a_committed_outcome_stays_and_a_later_commit_is_refused, async |kit| {
    let log = Log::default();
    let words = log.clone();
    let script = Script::new(&log, move |_, runtime| {
        let log = words.clone();
        async move {
            end(&runtime, 7).await?;
            let late = runtime
                .commit(async |tx, task| {
                    tx.append_entry(task.conversation, EntryDraft::new("late")).await?;
                    Ok::<_, Fault>(Next::End(Outcome::Completed(8.into())))
                })
                .await;
            log.push(if late.is_err() { "refused" } else { "committed" });
            Err(fault("too late"))
        }
    });
    let (id, outcome) = ran(&mut kit, script).await;
    assert_eq!(outcome, Outcome::Completed(7.into()));
    kit.until("the late commit's answer", async || log.words() == ["a", "refused"]).await;
    kit.reopen().await;
    assert_eq!(kit.task(id.erase()).await.state, TaskState::Terminal { outcome: TaskOutcome::Completed { result: 7.into() } });
    assert!(kit.kinds().await.is_empty());
});

/// Keeps memos in `a`; tells in each later phase which it finds.
fn remembers(log: &Log, gate: &Gate) -> Script {
    let (words, gate) = (log.clone(), gate.clone());
    Script::new(log, move |task, runtime| {
        let (log, gate) = (words.clone(), gate.clone());
        async move {
            let (name, string): (Option<String>, Option<String>) = (runtime.memoized("name").await?, runtime.memoized("toString").await?);
            log.push(format!("{name:?} {string:?}"));
            match phase(&task.checkpoint).as_str() {
                "a" => {
                    let kept = [runtime.memo("name", &"a".to_owned()).await?, runtime.memo("name", &"b".to_owned()).await?];
                    log.push(kept.concat());
                    go(&runtime, "b").await
                }
                "b" => {
                    gate.pass().await;
                    go(&runtime, "c").await
                }
                "c" => {
                    tokio::select! {
                        () = gate.pass() => end(&runtime, 1).await,
                        () = runtime.cancelled().cancelled() => Err(Fault::Ended),
                    }
                }
                other => Err(fault(other)),
            }
        }
    })
}

scenario!(s064_the_first_memo_is_kept_over_checkpoints_handover_and_reopen, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    let id = kit.begin(remembers(&log, &gate), String::new()).await;
    gate.begun().await;
    kit.replace(remembers(&log, &gate).build("2")).await;
    gate.open();
    gate.begun().await;
    let handed = TaskState::Pending { checkpoint: at("c") };
    assert!(kit.disk.records(id.erase()).iter().any(|record| record.state == handed), "the second build took it over");
    kit.reopen().await;
    gate.begun().await;
    gate.open();
    assert_eq!(kit.outcome(id).await, Outcome::Completed(1.into()));
    let (nothing, kept) = ("None None", r#"Some("a") None"#);
    assert_eq!(log.words(), ["a", nothing, "aa", "b", kept, "c", kept, "c", kept]);
    let record = Json::from_serde(&kit.task(id.erase()).await).unwrap().to_string();
    assert!(!record.contains("memos") && !record.contains("checkpoint"), "{record}");
});

/// Every operation of a runtime with the name of one that was not refused.
async fn allowed(runtime: &TaskRuntime<Script>, entry: EntryId) -> Vec<&'static str> {
    let id = runtime.task_id();
    let results = [
        ("commit", put(runtime, Next::Stay).await.is_err()),
        ("memo", runtime.memo("m", &1_u32).await.is_err()),
        ("memoized", runtime.memoized::<u32>("m").await.is_err()),
        ("task", runtime.task(id.erase()).await.is_err()),
        ("outcomes", runtime.outcomes(&[id]).await.is_err()),
        ("no outcomes", runtime.outcomes::<Json>(&[]).await.is_err()),
        ("wait_for_task", runtime.wait_for_task(id).await.is_err()),
        ("entry", runtime.entry(entry).await.is_err()),
        ("context", runtime.context(runtime.conversation_id(), None).await.is_err()),
        ("conversation", runtime.conversation(runtime.conversation_id()).await.is_err()),
        ("sleep", runtime.sleep(Millis(0)).await.is_err()),
        ("handlers", runtime.handlers().await.is_err()),
        ("ask", runtime.ask(async { Ok(()) }).await.is_err()),
        ("document", runtime.hook_api().snapshot(&picofleet_harness::config::CONFIG, ROOT_CONVERSATION_ID).await.is_err()),
    ];
    results.into_iter().filter(|(_, refused)| !refused).map(|(name, _)| name).collect()
}

scenario!(s067_nothing_of_an_invocation_works_once_it_is_over, async |kit| {
    let (kept, log) = (Arc::new(Mutex::new(None)), Log::default());
    let (keeps, words) = (Arc::clone(&kept), log.clone());
    let script = Script::new(&log, move |_, runtime| {
        let (kept, log) = (Arc::clone(&keeps), words.clone());
        async move {
            let conversation = runtime.conversation(runtime.conversation_id()).await?.unwrap();
            let (waiter, waits) = (runtime.clone(), TaskId::<Json>::new(runtime.task_id().get()).unwrap());
            // Nobody awaits it: the end of the invocation cancels it.
            tokio::spawn(async move { log.push(format!("waited {}", waiter.wait_for_task(waits).await.is_err())) });
            let entry = runtime
                .commit(async |tx, task| {
                    tx.append_entry(task.conversation, EntryDraft::new("note")).await?;
                    Ok::<_, Fault>(Next::Checkpoint(at("b")))
                })
                .await;
            entry?;
            let cancelled = runtime.cancelled().clone();
            *kept.lock().unwrap() = Some((runtime.clone(), conversation, cancelled));
            put(&runtime, Next::Sleep { checkpoint: at("c"), until: Millis(i64::from(i32::MAX)) }).await
        }
    });
    let id = kit.begin(script, String::new()).await;
    kit.until("the sleep", async || matches!(kit.task(id.erase()).await.state, TaskState::Sleeping { .. })).await;
    let (runtime, conversation, cancelled) = kept.lock().unwrap().take().unwrap();
    cancelled.cancelled().await;
    let entry = kit.entries(&kit.root().await).await[0].id;
    assert_eq!(allowed(&runtime, entry).await, [""; 0]);
    assert!(conversation.submit(SubmissionDraft::input("late")).await.is_err());
    assert!(conversation.abort().await.is_err());
    assert!(conversation.wait_for_idle().await.is_err());
    kit.until("the end of the wait", async || log.words() == ["a", "waited true"]).await;
    assert_eq!(kit.kinds().await, ["note"]);
    assert!(kit.inbox().await.is_empty());
    // The task itself is untouched by all of it.
    assert!(matches!(kit.task(id.erase()).await.state, TaskState::Sleeping { .. }));
});

scenario!(x028_a_checkpoint_that_is_equal_by_value_is_no_progress, async |kit| {
    let log = Log::default();
    let deep = |first: &str, second: &str| {
        let field = |name: &str| match name {
            "phase" => ("phase", Json::from("b")),
            _ => ("list", Json::array([Json::from(1), Json::object([("x", Json::array([Json::from(2)]))])])),
        };
        Json::object([field(first), field(second)])
    };
    let script = Script::new(&log, move |task, runtime| async move {
        let next = if phase(&task.checkpoint) == "a" { deep("phase", "list") } else { deep("list", "phase") };
        put(&runtime, Next::Checkpoint(next)).await
    });
    let (_, outcome) = ran(&mut kit, script).await;
    assert!(matches!(&outcome, Outcome::Faulted(error) if error.message.contains("without durable progress")), "{outcome:?}");
    assert_eq!(log.words(), ["a", "b"]);
});

fn late_tool(registry: &Registry) {
    registry.tool(Closure::new("late", |_, _| async { Ok(ToolResult::text("late")) })).unwrap();
}

scenario!(x031_a_tool_that_is_registered_in_a_phase_is_seen_in_the_next, async |kit| {
    let (log, registry) = (Log::default(), kit.registry.clone());
    let words = log.clone();
    let script = Script::new(&log, move |task, runtime| {
        let (log, registry) = (words.clone(), registry.clone());
        async move {
            let sees = |log: &Log| log.push(format!("{}", runtime.registry().tool("late").is_some()));
            if phase(&task.checkpoint) == "a" {
                sees(&log);
                late_tool(&registry);
                sees(&log);
                go(&runtime, "b").await?;
                sees(&log);
                return Ok(());
            }
            sees(&log);
            end(&runtime, 0).await
        }
    });
    ran(&mut kit, script).await;
    assert_eq!(log.words(), ["a", "false", "false", "false", "b", "true"]);
});

scenario!(x032_an_unknown_task_is_refused_and_a_terminal_one_answers_at_once, async |kit| {
    let (id, outcome) = ran(&mut kit, Script::new(&Log::default(), |_, runtime| async move { end(&runtime, 3).await })).await;
    let (harness, unknown) = (kit.harness(), TaskId::<Json>::new(9_999).unwrap());
    let missing = |error: Result<(), HostError>| assert_eq!(error.unwrap_err().to_string(), "task 9999 does not exist");
    missing(harness.wait_for_task(unknown).await.map(|_| ()));
    missing(harness.abort_task(unknown.erase()).await.map(|_| ()));
    assert_eq!(harness.abort_task(id.erase()).await.unwrap(), AbortTask::Terminal);
    assert_eq!(harness.wait_for_task(id).await.unwrap(), outcome);
    assert!(!kit.task(id.erase()).await.abort_requested);
});
