mod partial;

use std::sync::Arc;

use picofleet_delta::Tracker;
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, StopReason, TextContent};
use picofleet_session::{
    ConversationId, EntryId, InputState, Op, SubmissionState, TaskError, TaskOutcome, TaskRecord, TaskState, ops_to_json,
};

use super::*;
use crate::frame::{DocumentFrame, Frame};
use crate::live::{LIVE, LiveRetry, LiveState, Run, Severity, SlotStatus};
use crate::view::Mount;
use crate::view::tests::{frame, point, record};

fn entry_id(n: i64) -> EntryId {
    EntryId::new(n).unwrap()
}

fn input(n: i64) -> SubmissionId {
    SubmissionId::new(n).unwrap()
}

fn task_id(n: i64) -> TaskId {
    TaskId::new(n).unwrap()
}

fn mount(live: &LiveState) -> Mount {
    let live = Json::from_serde(live).unwrap();
    Mount::new(point(1), record(), &[], [(LIVE.kind.to_owned(), live)]).unwrap()
}

/// The next frame of a mount, whose live document becomes another one as a whole.
fn next(before: &Mount, after: &LiveState) -> Frame {
    let mut frame = frame(point(before.at().0.0 + 1), Some(before.at()));
    let tracker = Tracker::new(before.get(LIVE.kind).unwrap().clone()).unwrap();
    let prepared = tracker.prepare_replace(Json::from_serde(after).unwrap()).unwrap();
    if !prepared.ops.is_empty() {
        frame.documents.push((LIVE.kind.to_owned(), DocumentFrame::Ops(ops_to_json(&prepared.ops))));
    }
    frame
}

fn tell(before: &Mount, frame: &Frame) -> Vec<AgentEvent> {
    let mut after = before.clone();
    after.advance(frame).unwrap();
    let list = events(before, frame, &after);
    for event in &list {
        let written = Json::from_serde_envelope(event).unwrap();
        assert_eq!(&written.to::<AgentEvent>().unwrap(), event, "{written}");
    }
    list
}

fn names(list: &[AgentEvent]) -> Vec<String> {
    list.iter().map(|event| Json::from_serde_envelope(event).unwrap().get("type").unwrap().as_str().unwrap().into_owned()).collect()
}

fn slot(call: &str, status: SlotStatus) -> ToolSlot {
    ToolSlot {
        call_id: call.to_owned(),
        name: "bash".to_owned(),
        task_id: Some(task_id(7)),
        status,
        output: None,
        dropped_bytes: None,
        dropped_lines: None,
        details: None,
        diagnostics: None,
        entry: None,
    }
}

fn with_tools(tools: Vec<ToolSlot>) -> LiveState {
    LiveState { tools: Some(tools), ..LiveState::default() }
}

fn task(id: i64, kind: &str, state: TaskState) -> Arc<TaskRecord> {
    let text = format!(
        r#"{{"id":{id},"conversationId":1,"kind":"{kind}","version":1,"input":null,"background":false,"abortRequested":false,"state":{{"status":"pending","checkpoint":null}}}}"#
    );
    Arc::new(TaskRecord { state, ..Json::parse(text.as_bytes()).unwrap().to().unwrap() })
}

fn assistant(text: &str) -> Message {
    Message::from(AssistantMessage {
        content: vec![AssistantBlock::Text(TextContent::new(text))],
        api: "scripted".into(),
        provider: "p".into(),
        model: "m".into(),
        response_model: None,
        response_id: None,
        provider_thinking_level: None,
        thinking_level: None,
        diagnostics: None,
        usage: Usage::default(),
        stop_reason: StopReason::Pending,
        deferred: None,
        error_message: None,
        raw_stop_reason: None,
        end_turn: None,
        timestamp: Millis(1),
        duration_ms: None,
    })
}

fn attempt(message: Option<Json>) -> LiveState {
    let generation = LiveGeneration { attempt: 1, message, retry: None, deferred: None };
    LiveState { generation: Some(generation), ..LiveState::default() }
}

fn entry(id: i64, kind: &str, message: Option<Message>) -> Arc<EntryRecord> {
    Arc::new(EntryRecord {
        id: entry_id(id),
        conversation_id: ConversationId::new(1).unwrap(),
        kind: kind.into(),
        model: message.map(|message| vec![message]),
        data: None,
        head: None,
        edits: None,
        by_task_id: None,
    })
}

#[test]
fn a_run_goes_on_with_steers_and_in_the_hands_of_a_successor_and_ends_where_the_first_input_is_another() {
    let run = |task, inputs: &[i64]| LiveState {
        run: Some(Run { task_id: task_id(task), inputs: inputs.iter().map(|n| input(*n)).collect() }),
        ..LiveState::default()
    };
    let told = |before: &LiveState, after: &LiveState| {
        let before = mount(before);
        tell(&before, &next(&before, after))
    };
    let start = |inputs: &[i64]| AgentEvent::RunStart { inputs: inputs.iter().map(|n| input(*n)).collect() };
    let end = |inputs: &[i64]| AgentEvent::RunEnd { inputs: inputs.iter().map(|n| input(*n)).collect() };
    assert_eq!(told(&LiveState::default(), &run(5, &[3])), [start(&[3])]);
    assert_eq!(told(&run(5, &[3]), &run(6, &[3, 4])), []);
    assert_eq!(told(&run(5, &[3, 4]), &run(6, &[8])), [end(&[3, 4]), start(&[8])]);
    assert_eq!(told(&run(5, &[3]), &LiveState::default()), [end(&[3])]);
}

#[test]
fn a_turn_ends_once_where_its_outcome_is_decided_and_before_its_successor_starts() {
    let before = mount(&LiveState::default());
    let outcome = TaskOutcome::Completed { result: Json::null() };
    let mut held = next(&before, &LiveState::default());
    held.tasks = vec![
        task(5, "pi.generation", TaskState::Completing { outcome: outcome.clone() }),
        task(9, "pi.generation", TaskState::Pending { checkpoint: Json::null() }),
        task(10, "pi.tool", TaskState::Pending { checkpoint: Json::null() }),
    ];
    (held.created, held.decided) = (vec![task_id(9), task_id(10)], vec![task_id(5)]);
    assert_eq!(tell(&before, &held), [AgentEvent::TurnEnd, AgentEvent::TurnStart]);
    let mut terminal = next(&before, &LiveState::default());
    terminal.tasks = vec![task(5, "pi.generation", TaskState::Terminal { outcome })];
    assert_eq!(tell(&before, &terminal), [], "it was decided before");
}

#[test]
fn a_task_that_faults_or_is_orphaned_is_told_when_it_is_over() {
    let before = mount(&LiveState::default());
    let mut over = next(&before, &LiveState::default());
    let faulted = TaskOutcome::Faulted { error: TaskError { message: "broken".into(), detail: None } };
    let orphaned = TaskOutcome::Orphaned { reason: "missing_task".into() };
    over.tasks = vec![
        task(4, "app.held", TaskState::Completing { outcome: faulted.clone() }),
        task(5, "app.a", TaskState::Terminal { outcome: faulted }),
        task(6, "app.b", TaskState::Terminal { outcome: orphaned }),
        task(7, "app.c", TaskState::Terminal { outcome: TaskOutcome::Aborted { reason: None, result: None } }),
    ];
    let failed =
        |id, kind: &str, message: &str| AgentEvent::TaskFailed { task_id: task_id(id), kind: kind.into(), message: message.into() };
    assert_eq!(tell(&before, &over), [failed(5, "app.a", "broken"), failed(6, "app.b", "missing_task")]);
}

#[test]
fn a_message_begins_with_its_first_part_or_with_its_entry() {
    let message = Json::from_serde(&assistant("a")).unwrap();
    let before = mount(&attempt(None));
    let first = next(&before, &attempt(Some(message.clone())));
    assert_eq!(tell(&before, &first), [AgentEvent::MessageStart { message: message.clone() }]);

    let shown = mount(&attempt(Some(message.clone())));
    let answer = entry(8, "pi.assistant", Some(assistant("ab")));
    let mut end = next(&shown, &LiveState::default());
    end.entries = vec![answer.clone(), entry(9, "app.note", None)];
    let appended = AgentEvent::EntryAppended { entry: entry(9, "app.note", None) };
    assert_eq!(tell(&shown, &end), [AgentEvent::MessageEnd { entry: answer.clone() }, appended]);

    let mut unseen = next(&before, &LiveState::default());
    unseen.entries = vec![answer.clone()];
    let start = AgentEvent::MessageStart { message: Json::from_serde(&assistant("ab")).unwrap() };
    assert_eq!(tell(&before, &unseen), [start, AgentEvent::MessageEnd { entry: answer }]);
}

#[test]
fn other_entries_do_not_end_a_message_that_is_coming_in() {
    let shown = mount(&attempt(Some(Json::from_serde(&assistant("a")).unwrap())));
    let mut written = next(&shown, &attempt(Some(Json::from_serde(&assistant("a")).unwrap())));
    written.entries = vec![entry(8, "pi.assistant", Some(assistant("raw")))];
    assert_eq!(names(&tell(&shown, &written)), ["message_start", "message_end"], "the part is still there");
}

#[test]
fn a_change_of_the_usage_alone_has_no_changes() {
    let shown = mount(&attempt(Some(Json::from_serde(&assistant("a")).unwrap())));
    let Message::Assistant(mut message) = assistant("a") else { unreachable!() };
    Arc::make_mut(&mut message).usage.input = 9;
    let usage = message.usage;
    let at = ["generation", "message", "usage"].map(Segment::from).to_vec();
    let mut more = frame(point(2), Some(shown.at()));
    let ops = [Op::Set(at, Json::from_serde(&usage).unwrap())];
    more.documents = vec![(LIVE.kind.to_owned(), DocumentFrame::Ops(ops_to_json(&ops)))];
    assert_eq!(tell(&shown, &more), [AgentEvent::MessageUpdate { usage, changes: Vec::new() }]);
}

#[test]
fn a_tool_starts_with_the_arguments_of_its_intent_and_ends_with_its_entry() {
    let args = Json::object([("command", "ls")]);
    let before = mount(&with_tools(vec![slot("c1", SlotStatus::Pending)]));
    let mut intent = next(&before, &with_tools(vec![slot("c1", SlotStatus::Running)]));
    let checkpoint = Json::build_object().with("phase", "execute").with("arguments", args.clone()).with("replay", "unsafe").build();
    intent.tasks = vec![task(7, "pi.tool", TaskState::Running { checkpoint })];
    let started = AgentEvent::ToolExecutionStart { tool_call_id: "c1".into(), tool_name: "bash".into(), args };
    assert_eq!(tell(&before, &intent), [started]);

    let before = mount(&with_tools(vec![slot("c1", SlotStatus::Running)]));
    let result = entry(9, "pi.tool-result", Some(assistant("stands for a result")));
    let mut done = next(&before, &with_tools(vec![ToolSlot { entry: Some(entry_id(9)), ..slot("c1", SlotStatus::Done) }]));
    done.entries = vec![result.clone()];
    let told = tell(&before, &done);
    assert_eq!(names(&told), ["tool_execution_end", "message_start", "message_end"]);
    assert_eq!(told[0], AgentEvent::ToolExecutionEnd { tool_call_id: "c1".into(), tool_name: "bash".into(), entry: Some(result) });

    let faulted = next(&before, &with_tools(vec![slot("c1", SlotStatus::Done)]));
    let end = AgentEvent::ToolExecutionEnd { tool_call_id: "c1".into(), tool_name: "bash".into(), entry: None };
    assert_eq!(tell(&before, &faulted), std::slice::from_ref(&end));
    assert_eq!(tell(&before, &next(&before, &LiveState::default())), [end], "its run ended");
}

#[test]
fn output_slides_or_is_set_and_details_and_diagnostics_are_whole() {
    let running = |output: Option<&str>| ToolSlot { output: output.map(str::to_owned), ..slot("c1", SlotStatus::Running) };
    let update = |before: &ToolSlot, after: &ToolSlot, ops: Option<Vec<Op>>| {
        let before = mount(&with_tools(vec![before.clone()]));
        let mut frame = next(&before, &with_tools(vec![after.clone()]));
        if let Some(ops) = ops {
            frame.documents = vec![(LIVE.kind.to_owned(), DocumentFrame::Ops(ops_to_json(&ops)))];
        }
        let mut told = tell(&before, &frame);
        assert!(told.len() <= 1, "{told:?}");
        told.pop().map(|event| {
            let AgentEvent::ToolExecutionUpdate { output, details, diagnostics, .. } = event else { panic!("{event:?}") };
            (output, details, diagnostics)
        })
    };
    let at = || [Segment::from("tools"), Segment::from(0), Segment::from("output")].to_vec();
    let slide = |trim_start, append: Option<&str>| Some(OutputChange::Slide { trim_start, append: append.map(str::to_owned) });
    let set = |text: &str| Some(OutputChange::Set { set: text.to_owned() });
    let ops = vec![Op::Append(at(), "c".into())];
    assert_eq!(update(&running(Some("ab")), &running(Some("abc")), Some(ops)), Some((slide(None, Some("c")), None, None)));
    let ops = vec![Op::TrimUtf16(at(), 2), Op::Append(at(), "c".into()), Op::Append(at(), "d".into())];
    assert_eq!(update(&running(Some("ab")), &running(Some("cd")), Some(ops)), Some((slide(Some(2), Some("cd")), None, None)));
    assert_eq!(update(&running(None), &running(Some("ab")), None), Some((set("ab"), None, None)));
    let ops = vec![Op::Append(at(), "c".into()), Op::TrimUtf16(at(), 2)];
    assert_eq!(update(&running(Some("ab")), &running(Some("c")), Some(ops)), Some((set("c"), None, None)));

    let remark = vec![ToolDiagnostic { severity: Severity::Info, message: "m".into(), code: None }];
    let said = ToolSlot { details: Some(Json::from(1)), diagnostics: Some(remark.clone()), ..running(Some("x")) };
    assert_eq!(update(&running(Some("x")), &said, None), Some((None, Some(Json::from(1)), Some(remark))));
    assert_eq!(update(&said, &running(None), None), Some((set(""), Some(Json::null()), Some(Vec::new()))), "a safe replay");
    let dropped = ToolSlot { dropped_bytes: Some(4), ..running(Some("x")) };
    assert_eq!(update(&running(Some("x")), &dropped, None), None, "no event tells how much was dropped");
}

#[test]
fn pauses_polls_and_compactions_are_told() {
    let with = |attempt, retry: Option<i64>, deferred: Option<i64>| LiveState {
        generation: Some(LiveGeneration {
            attempt,
            message: None,
            retry: retry.map(|at| LiveRetry { at: Millis(at), error: "busy".into() }),
            deferred: deferred.map(|at| crate::live::LiveDeferred { poll_at: Millis(at) }),
        }),
        ..LiveState::default()
    };
    let told = |before: &LiveState, after: &LiveState| {
        let before = mount(before);
        tell(&before, &next(&before, after))
    };
    let start = AgentEvent::AutoRetryStart { attempt: 1, at: Millis(50), error_message: "busy".into() };
    assert_eq!(told(&with(1, None, None), &with(1, Some(50), None)), [start]);
    assert_eq!(told(&with(1, Some(50), None), &with(2, None, None)), [AgentEvent::AutoRetryEnd { attempt: 1 }]);
    let poll = |at| AgentEvent::DeferredPoll { poll_at: Millis(at) };
    assert_eq!(told(&with(1, None, None), &with(1, None, Some(5))), [poll(5)]);
    assert_eq!(told(&with(1, None, Some(5)), &with(1, None, Some(9))), [poll(9)]);
    assert_eq!(told(&with(1, None, Some(9)), &with(1, None, None)), []);

    let compacting = |ids: &[i64]| LiveState {
        compactions: Some(
            ids.iter()
                .map(|id| CompactionStatus {
                    task_id: task_id(*id),
                    reason: crate::compaction::CompactionReason::Threshold,
                    blocking: true,
                    attempt: 1,
                    retry: None,
                })
                .collect(),
        ),
        ..LiveState::default()
    };
    let reason = crate::compaction::CompactionReason::Threshold;
    assert_eq!(
        told(&compacting(&[4]), &compacting(&[5])),
        [
            AgentEvent::CompactionEnd { task_id: task_id(4), reason },
            AgentEvent::CompactionStart { task_id: task_id(5), reason, blocking: true },
        ]
    );
}

#[test]
fn x095_a_compaction_ends_before_its_run_and_starts_before_the_next_one() {
    let with = |compaction, task, inputs: i64| LiveState {
        run: Some(Run { task_id: task_id(task), inputs: vec![input(inputs)] }),
        compactions: Some(vec![CompactionStatus {
            task_id: task_id(compaction),
            reason: crate::compaction::CompactionReason::Overflow,
            blocking: true,
            attempt: 1,
            retry: None,
        }]),
        ..LiveState::default()
    };
    let before = mount(&with(4, 3, 2));
    let mut both = next(&before, &with(14, 13, 12));
    let outcome = TaskOutcome::Aborted { reason: None, result: None };
    both.tasks = vec![
        task(3, "pi.generation", TaskState::Terminal { outcome }),
        task(13, "pi.generation", TaskState::Pending { checkpoint: Json::null() }),
    ];
    (both.created, both.decided) = (vec![task_id(13)], vec![task_id(3)]);
    assert_eq!(names(&tell(&before, &both)), ["compaction_end", "turn_end", "run_end", "compaction_start", "run_start", "turn_start"]);
}

#[test]
fn submissions_come_in_the_order_of_their_ids() {
    let before = mount(&LiveState::default());
    let mut many = next(&before, &LiveState::default());
    let record = |n| {
        let state = SubmissionState::Input(InputState::Queued);
        Arc::new(SubmissionRecord { id: input(n), conversation_id: record().id, request_id: None, state })
    };
    many.submissions = vec![record(9), record(3)];
    let event = |n| AgentEvent::Submission { record: record(n) };
    assert_eq!(tell(&before, &many), [event(3), event(9)]);
}

#[test]
fn an_event_is_written_as_the_specification_names_it() {
    let event = AgentEvent::MessageUpdate {
        usage: Usage::default(),
        changes: vec![MessageChange::ToolcallDelta {
            content_index: 1,
            path: vec![Segment::from("edits"), Segment::from(0)],
            delta: "x".into(),
        }],
    };
    let written = Json::from_serde(&event).unwrap();
    assert_eq!(
        written.get("changes").unwrap().to_string(),
        r#"[{"type":"toolcall_delta","contentIndex":1,"path":["edits",0],"delta":"x"}]"#
    );
    let snapshot = AgentEvent::Snapshot(Box::new(snapshot(&mount(&LiveState::default()))));
    let written = Json::from_serde(&snapshot).unwrap();
    let keys: Vec<&str> = written.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["type", "entries", "tools", "compactions", "inbox", "config", "usage"]);
    assert_eq!(written.to::<AgentEvent>().unwrap(), snapshot);
}
