use picofleet_session::{JoinPolicy, Json, ROOT_CONVERSATION_ID, TaskError};

use super::*;

fn task(id: i64) -> TaskId {
    TaskId::new(id).unwrap()
}

fn conversation(id: i64) -> ConversationId {
    ConversationId::new(id).unwrap()
}

fn checkpoint() -> Json {
    Json::object([("phase", "p")])
}

fn pending() -> TaskState {
    TaskState::Pending { checkpoint: checkpoint() }
}

fn waiting(on: &[i64], policy: JoinPolicy) -> TaskState {
    TaskState::Waiting { checkpoint: checkpoint(), on: on.iter().map(|id| task(*id)).collect(), policy }
}

fn failed() -> TaskOutcome {
    TaskOutcome::Failed { error: TaskError { message: "no".into(), detail: None }, result: None }
}

/// A tree under construction.
#[derive(Default)]
struct Build(Tree);

impl Build {
    fn own_conversation(mut self, id: i64, owner: Option<i64>) -> Self {
        self.0.own(conversation(id), owner.map(task));
        self
    }

    fn task(mut self, id: i64, in_conversation: i64, owner: Option<i64>, state: TaskState) -> Self {
        let record = TaskRecord {
            id: task(id),
            conversation_id: conversation(in_conversation),
            kind: "k".into(),
            version: 1,
            input: Json::null(),
            owner: owner.map(task),
            background: false,
            abort_requested: false,
            state,
            memos: None,
            restarts: 0,
            started_at: None,
            ended_at: None,
        };
        if !self.0.conversation_owners.contains_key(&record.conversation_id) {
            self.0.own(record.conversation_id, None);
        }
        self.0.put(record);
        self
    }

    fn change(mut self, id: i64, change: impl FnOnce(&mut TaskRecord)) -> Self {
        let mut record = self.0.live[&task(id)].clone();
        change(&mut record);
        self.0.put(record);
        self
    }

    /// Makes a task terminal.
    fn end(mut self, id: i64, outcome: TaskOutcome) -> Self {
        self.0.end(task(id), &outcome);
        self
    }

    fn plan(&self) -> Plan {
        self.0.plan(&BTreeSet::new(), Millis(100))
    }
}

fn ids(list: &[i64]) -> Vec<TaskId> {
    list.iter().map(|id| task(*id)).collect()
}

/// a(10) owns b(11), b owns conversation 2 with x(12).
fn chain() -> Build {
    Build::default().task(10, 1, None, pending()).task(11, 1, Some(10), pending()).own_conversation(2, Some(11)).task(
        12,
        2,
        None,
        pending(),
    )
}

#[test]
fn a_mark_cascades_through_tasks_and_conversations_and_abort_handlers_run_bottom_up() {
    let marked = chain().change(10, |task| task.abort_requested = true);
    let plan = marked.plan();
    assert_eq!(plan.marks, ids(&[11, 12]).into_iter().collect());
    assert_eq!((plan.runs, plan.aborts), (vec![], vec![]), "nothing runs below a cancelled owner, and the top waits");
    let all = marked.change(11, |task| task.abort_requested = true).change(12, |task| task.abort_requested = true);
    assert_eq!(all.plan().aborts, ids(&[12]));
    let ended = all.end(12, TaskOutcome::Aborted { reason: None, result: None });
    assert_eq!(ended.plan().aborts, ids(&[11]));
}

#[test]
fn a_background_task_without_its_own_mark_shields_what_is_below() {
    let shielded = Build::default()
        .task(10, 1, None, pending())
        .own_conversation(2, Some(10))
        .task(11, 2, None, pending())
        .change(11, |task| task.background = true)
        .own_conversation(3, Some(11))
        .task(12, 3, None, pending())
        .change(10, |task| task.abort_requested = true);
    assert_eq!(shielded.plan().marks, BTreeSet::new());
    assert_eq!(shielded.plan().aborts, ids(&[10]), "background work is no ordinary owned work");
    let own = shielded.change(11, |task| task.abort_requested = true);
    assert_eq!(own.plan().marks, ids(&[12]).into_iter().collect());
    assert!(own.0.conversation_below_cancelled(conversation(3)));
    assert!(!own.0.conversation_below_cancelled(ROOT_CONVERSATION_ID));
}

#[test]
fn a_held_failure_cancels_and_a_held_success_waits() {
    let hold = |outcome| chain().change(10, |task| task.state = TaskState::Completing { outcome });
    assert_eq!(hold(failed()).plan().marks, ids(&[11, 12]).into_iter().collect());
    let completed = hold(TaskOutcome::Completed { result: Json::null() });
    assert_eq!(completed.plan().marks, BTreeSet::new());
    assert_eq!(completed.plan().runs, ids(&[11, 12]));
    assert_eq!(completed.plan().finishes, vec![]);
    let drained = completed.end(12, failed()).end(11, failed());
    assert_eq!(drained.plan().finishes, ids(&[10]));
}

#[test]
fn work_below_a_terminal_owner_runs_normally() {
    let over = chain().end(10, failed()).end(11, failed());
    assert_eq!(over.plan().marks, BTreeSet::new());
    assert_eq!(over.plan().runs, ids(&[12]));
    assert_eq!(over.0.foreground_of(ROOT_CONVERSATION_ID), ids(&[12]), "traversal follows owner edges of terminal owners");
}

#[test]
fn fail_fast_marks_the_others_and_the_waiting_task_resumes_when_all_are_over() {
    let build = Build::default()
        .task(10, 1, None, waiting(&[11, 12, 13], JoinPolicy::FailFast))
        .task(11, 1, Some(10), pending())
        .task(12, 1, Some(10), TaskState::Completing { outcome: failed() })
        .task(13, 1, Some(10), pending());
    let plan = build.plan();
    assert_eq!(plan.marks, ids(&[11, 12, 13]).into_iter().collect());
    assert_eq!(plan.runs, vec![]);
    let aborted = TaskOutcome::Aborted { reason: None, result: None };
    let over = build.end(11, aborted.clone()).end(12, failed()).end(13, aborted);
    assert_eq!(over.plan().runs, ids(&[10]));
    assert!(!over.0.live[&task(10)].abort_requested);
}

#[test]
fn sleepers_run_when_due_and_marks_wake_them() {
    let sleeping = |until| TaskState::Sleeping { checkpoint: checkpoint(), until: Millis(until) };
    let build = Build::default().task(10, 1, None, sleeping(100)).task(11, 1, None, sleeping(101)).task(12, 1, None, sleeping(150));
    let plan = build.plan();
    assert_eq!((plan.runs, plan.next_due), (ids(&[10]), Some(Millis(101))));
    assert_eq!(build.change(12, |task| task.abort_requested = true).plan().aborts, ids(&[12]));
}

#[test]
fn an_empty_wait_resumes_at_once_and_an_invoked_task_is_left_alone() {
    let build = Build::default().task(10, 1, None, waiting(&[], JoinPolicy::AllSettled)).task(11, 1, None, pending());
    assert_eq!(build.plan().runs, ids(&[10, 11]));
    let invoked = [task(11)].into();
    assert_eq!(build.0.plan(&invoked, Millis(0)).runs, ids(&[10]));
}

#[test]
fn wait_cycles_are_named() {
    let build = Build::default().task(10, 1, None, pending()).task(11, 1, None, waiting(&[12], JoinPolicy::AllSettled)).task(
        12,
        1,
        None,
        pending(),
    );
    assert_eq!(build.0.wait_cycle(task(12), &ids(&[11])), Some(ids(&[12, 11, 12])));
    assert_eq!(build.0.wait_cycle(task(10), &ids(&[11, 12])), None, "a diamond is no cycle");
    let holding = Build::default().task(10, 1, None, pending()).task(11, 1, Some(10), pending()).change(10, |task| {
        task.state = TaskState::Completing { outcome: TaskOutcome::Completed { result: Json::null() } };
    });
    assert!(holding.0.wait_cycle(task(11), &ids(&[10])).is_some(), "a held owner waits for its owned work");
}

/// The ordinary owned work, looked for from below among all that is live.
fn owned_from_below(tree: &Tree, task: TaskId) -> Vec<TaskId> {
    let reaches = |other: &&TaskId| tree.ancestors(**other).any(|(above, ordinary)| ordinary && above == task);
    tree.live.keys().filter(reaches).copied().collect()
}

/// Outcomes that live tasks wait for.
fn waited(tree: &Tree) -> BTreeSet<TaskId> {
    let waits = tree.live.values().filter_map(|task| if let TaskState::Waiting { on, .. } = &task.state { Some(on) } else { None });
    waits.flatten().copied().collect()
}

proptest::proptest! {
    /// Whatever is made, waits and ends: what is kept from above and of waits says the same as a look at everything, also once what
    /// nobody needs was dropped.
    #[test]
    fn what_is_kept_says_what_a_look_at_everything_does(
        steps in proptest::collection::vec((0_u8..9, 0_usize..12, 0_usize..12, proptest::bool::ANY), 1..60),
    ) {
        let mut build = Build::default().own_conversation(1, None);
        let (mut tasks, mut conversations, mut ended) = (Vec::<i64>::new(), vec![1_i64], BTreeSet::new());
        for (step, (what, one, two, flag)) in steps.into_iter().enumerate() {
            let id = 100 + i64::try_from(step).unwrap();
            let pick = |list: &[i64], at: usize| list.get(at % list.len().max(1)).copied();
            match what {
                0 => {
                    build = build.task(id, pick(&conversations, one).unwrap(), None, pending()).change(id, |task| task.background = flag);
                    tasks.push(id);
                }
                1 => if let Some(owner) = pick(&tasks, one) {
                    let within = build.0.lineage[&task(owner)].conversation.get();
                    build = build.task(id, within, Some(owner), pending());
                    tasks.push(id);
                },
                2 => if let Some(owner) = pick(&tasks, one) {
                    build = build.own_conversation(id, Some(owner));
                    conversations.push(id);
                },
                6 => if let Some(who) = pick(&tasks, one).filter(|who| !ended.contains(who)) {
                    build = build.change(who, |record| if flag { record.abort_requested = true } else { record.state = TaskState::Completing { outcome: failed() } });
                },
                7 => if let (Some(who), Some(on)) = (pick(&tasks, one), pick(&tasks, two)) && !ended.contains(&who) {
                    let until = Millis(if flag { 100 } else { 101 });
                    let sleeps = TaskState::Sleeping { checkpoint: Json::null(), until };
                    build = build.change(who, |record| record.state = if one == two { sleeps } else { waiting(&[on], JoinPolicy::FailFast) });
                },
                3 => if let (Some(who), Some(on)) = (pick(&tasks, one), pick(&tasks, two)) && !ended.contains(&who) {
                    build = build.change(who, |record| record.state = if flag { waiting(&[on, who], JoinPolicy::AllSettled) } else { pending() });
                },
                4 => if let Some(who) = pick(&tasks, one) && ended.insert(who) {
                    build = build.end(who, failed());
                },
                _ => {
                    // As a line that begins with what is live.
                    let mut again = Build::default();
                    for (conversation, owner) in &build.0.conversation_owners {
                        again.0.own(*conversation, *owner);
                    }
                    for (id, lineage) in &build.0.lineage {
                        again.0.place(*id, *lineage);
                    }
                    for record in build.0.live.values() {
                        again.0.put(record.clone());
                    }
                    for unknown in again.0.unknown().1 {
                        assert!(ended.contains(&unknown.get()), "{unknown} is live");
                        again.0.end(unknown, &failed());
                    }
                    build = again;
                }
            }
            let tree = &build.0;
            for id in &tasks {
                proptest::prop_assert_eq!(tree.owned_work(task(*id)), owned_from_below(tree, task(*id)));
            }
            let plan = build.plan();
            for id in &tasks {
                let planned = [(&plan.runs, Mode::Run), (&plan.aborts, Mode::Abort)].into_iter().find(|(list, _)| list.contains(&task(*id)));
                proptest::prop_assert_eq!(tree.may_start(task(*id), Millis(100)), planned.map(|(_, mode)| mode), "{}", id);
            }
            let waited = waited(tree);
            for outcome in tree.outcomes.keys() {
                proptest::prop_assert!(waited.contains(outcome) && !tree.live.contains_key(outcome));
            }
            let known = |task: &TaskId| tree.live.contains_key(task) || tree.outcomes.contains_key(task) || tree.unknown().1.contains(task);
            proptest::prop_assert!(waited.iter().all(known), "{:?}", tree.unknown());
        }
    }
}

#[test]
fn places_that_nobody_needs_are_forgotten() {
    let mut build =
        chain().task(20, 1, None, waiting(&[5_000], JoinPolicy::AllSettled)).task(5_000, 1, None, pending()).end(5_000, failed());
    for id in 1_000..3_000 {
        build = build.task(id, 1, Some(10), pending()).end(id, failed());
    }
    assert!(build.0.lineage.len() > 2_000);
    build.0.forget();
    assert_eq!(build.0.lineage.keys().copied().collect::<BTreeSet<_>>(), ids(&[10, 11, 12, 20]).into_iter().collect());
    assert_eq!(build.0.owned_work(task(10)), ids(&[11, 12]));
    assert_eq!(build.0.outcomes.keys().copied().collect::<Vec<_>>(), ids(&[5_000]));
    assert_eq!(build.0.unknown(), (vec![], vec![]));
}
