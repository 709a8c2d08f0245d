use picofleet_harness::effects::Fault;
use picofleet_harness::inspection::TaskView;
use picofleet_harness::kind::{Migration, Next, NoDecision, Outcome, Running, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_models::scripted::Script;
use picofleet_session::{Json, TaskId};
use picofleet_storage::memory::MemoryStore;
use tokio::sync::Semaphore;

use super::*;

/// A task of two phases, the first of which waits until it is let go. Its result says which version ended it.
struct Versioned<const V: u32> {
    begun: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl<const V: u32> TaskKind for Versioned<V> {
    const NAME: &'static str = "test.versioned";
    const VERSION: u32 = V;
    type Input = ();
    type Checkpoint = Json;
    type Output = u32;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, (): &()) -> Json {
        Json::object([("phase", "one")])
    }

    fn migration(&self) -> Option<Migration<Self>> {
        Some(|_, _, _, checkpoint| Ok(((), checkpoint)))
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        let next = if task.checkpoint == self.initial(&()) {
            self.begun.add_permits(1);
            self.go.acquire().await.unwrap().forget();
            Next::Checkpoint(Json::object([("phase", "two")]))
        } else {
            Next::End(Outcome::Completed(V))
        };
        runtime.commit(async |_, _| Ok::<_, Fault>(next)).await
    }

    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}

async fn create<K: TaskKind<Input = ()>>(harness: &Harness, kind: &K) -> TaskId<K::Output> {
    let created: anyhow::Result<TaskId<K::Output>> =
        harness.root().await.unwrap().commit(async |tx| Ok(tx.create_task(kind, (), TaskOptions::top_level()).await?)).await;
    created.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_registered_while_it_runs_counts_at_once() {
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (old, new) = (
        Arc::new(Versioned::<1> { begun: Arc::clone(&begun), go: Arc::clone(&go) }),
        Arc::new(Versioned::<2> { begun: Arc::clone(&begun), go: Arc::clone(&go) }),
    );
    let registry = Registry::new();
    let services = Services::new(registry.clone(), crate::scripted(Script::default()));
    let engine = Engine::start(Arc::new(MemoryStore::new()), services);
    let harness = engine.create_session().await.unwrap();
    assert_eq!(engine.harness(harness.session()).session(), harness.session());

    let task = create(&harness, &*old).await;
    let blocked = harness.inspect().await.unwrap().tasks.remove(0).state;
    assert!(matches!(&blocked, TaskView::Blocked { reason, .. } if reason == "missing_task"), "{blocked:?}");
    let registered = registry.task(old).unwrap();
    begun.acquire().await.unwrap().forget();

    // Both halves are replaced. A task of the new version begins once the line has it, and then the running one goes over.
    let replaced = registry.batch(|stage| {
        stage.dispose(&registered)?;
        stage.task(Arc::clone(&new))
    });
    replaced.unwrap();
    let other = create(&harness, &*new).await;
    begun.acquire().await.unwrap().forget();
    go.add_permits(2);
    assert_eq!(harness.wait_for_task(other).await.unwrap(), Outcome::Completed(2));
    assert_eq!(harness.wait_for_task(task).await.unwrap(), Outcome::Completed(2));
    engine.close().await.unwrap();
}
