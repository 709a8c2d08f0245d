//! How sessions are opened: on first use, one at a time for each session, and driven from then on.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use picofleet_harness::line::{Invocations, SessionLine, Visit, Workers};
use picofleet_harness::task::LineTasks;
use picofleet_harness::wire::{Invoked, Point};
use picofleet_session::storage::Tenant;
use picofleet_session::{Session, SessionId, SessionOptions, Standing};
use tokio::sync::Mutex;

use crate::{Coordinator, Options, ServeError, beats, driver};

impl Coordinator {
    /// The line of a session for one use, which keeps it from resting.
    pub(crate) async fn visit(&self, id: SessionId) -> Result<(SessionLine, Visit), ServeError> {
        loop {
            let line = self.line(id).await?;
            // It came to rest meanwhile: the next look opens it again.
            if let Some(visit) = line.visit() {
                return Ok((line, visit));
            }
        }
    }

    /// The line of a session. The first call opens it; others wait for that.
    pub(crate) async fn line(&self, id: SessionId) -> Result<SessionLine, ServeError> {
        if let Ok(sessions) = self.inner.sessions.try_lock()
            && let Some(line) = sessions.get(&id).filter(|line| line.session().standing() == Standing::Open && !line.rests())
        {
            return Ok(line.clone());
        }
        // On a task of its own: a caller in the same process may leave its future alone for a while, and the lock is fair. In the queue
        // for it such a future would keep every other call out.
        let coordinator = self.clone();
        tokio::spawn(async move { coordinator.find_or_open(id).await }).await.unwrap_or(Err(ServeError::Panicked))
    }

    async fn find_or_open(&self, id: SessionId) -> Result<SessionLine, ServeError> {
        self.in_turn(id, async {
            match self.found(id).await {
                Ok(Some(line)) => Ok(line),
                Ok(None) => self.open_line(id).await,
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Does something about the opening of a session while nobody else does.
    pub(crate) async fn in_turn<T>(&self, id: SessionId, work: impl Future<Output = T>) -> T {
        let turn = Arc::clone(self.opening().entry(id).or_default());
        let done = {
            let _turn = turn.lock().await;
            work.await
        };
        let mut opening = self.opening();
        // This one and the map's: nobody else waits for it.
        if Arc::strong_count(&turn) <= 2 {
            opening.remove(&id);
        }
        done
    }

    /// The line of a session that is open. One that failed or rests is forgotten.
    async fn found(&self, id: SessionId) -> Result<Option<SessionLine>, ServeError> {
        let mut sessions = self.inner.sessions.lock().await;
        let Some(line) = sessions.get(&id) else { return Ok(None) };
        if line.rests() {
            sessions.remove(&id);
            return Ok(None);
        }
        match line.session().standing() {
            Standing::Open | Standing::Closed => Ok(Some(line.clone())),
            // Whoever took it over has it; opening it again would only take it back.
            Standing::NotOwner => Err(ServeError::NotOwner),
            Standing::Failed => {
                self.inner.dispatch.forget(id);
                sessions.remove(&id);
                Ok(None)
            }
        }
    }

    async fn open_line(&self, id: SessionId) -> Result<SessionLine, ServeError> {
        if self.inner.closing.load(Ordering::Acquire) {
            return Err(ServeError::Stopping);
        }
        if self.inner.sealed.load(Ordering::Acquire) {
            return Err(ServeError::NotOwner);
        }
        let tasks = self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(missing) = tasks.missing() {
            return Err(ServeError::MissingTask(missing));
        }
        let Options { clock, mut line, resume, .. } = self.inner.options.clone();
        line.workers.get_or_insert_with(|| Arc::clone(&self.inner.routes) as Arc<dyn Workers>);
        if self.inner.known.has(id) {
            line.invocations = Invocations::Live;
        }
        let tenant = self.inner.store.session(id).await?.map(|record| record.tenant).unwrap_or_default();
        let head = self.inner.store.reader(id).await?.head().await?;
        line.before = Some(Point(head.seq, head.token));
        let options = line.session(SessionOptions { clock, ..SessionOptions::default() });
        let session = Session::open(&*self.inner.store, id, options).await?;
        let line = SessionLine::open(session, self.tasks(), line).await?;
        // Only now: an opening that failed has given nobody an invocation.
        self.inner.known.open(id);
        {
            let mut sessions = self.inner.sessions.lock().await;
            // Replaced meanwhile, they were not told to a line that nobody had yet.
            line.set_tasks(self.tasks());
            sessions.insert(id, line.clone());
        }
        if resume {
            line.resume();
        }
        for (task, invocation, ..) in line.invocations() {
            self.inner.leases.adopt(Invoked { session: id, task, invocation });
        }
        self.drive(&line, tenant).await;
        Ok(line)
    }

    /// Starts what plans a session, and what lets time pass for the leases.
    async fn drive(&self, line: &SessionLine, tenant: Tenant) {
        let driver = driver::Driver {
            coordinator: Arc::downgrade(&self.inner),
            line: line.clone(),
            tenant,
            dispatch: Arc::clone(&self.inner.dispatch),
            signals: self.inner.signals.clone(),
            stop: self.inner.stop.clone(),
            sweep: self.inner.options.sweep,
            idle: self.inner.options.idle,
            clock: self.inner.options.clock.clone(),
        };
        let mut drivers = self.inner.drivers.lock().await;
        while drivers.try_join_next().is_some() {}
        drivers.spawn(driver.run());
        if !self.inner.ticking.swap(true, Ordering::AcqRel) {
            drivers.spawn(beats::tick(Arc::downgrade(&self.inner), self.inner.stop.clone()));
        }
    }

    fn tasks(&self) -> LineTasks {
        self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn opening(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Arc<Mutex<()>>>> {
        self.inner.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
