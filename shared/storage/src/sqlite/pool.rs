//! Connections that only read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use picofleet_session::storage::StorageError;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::errors::Place;
use super::schema;

/// Some connections, each for one read at a time. A read runs on a thread for blocking calls, in one snapshot of the database that is
/// newer than every commit which was answered before.
#[derive(Debug)]
pub(super) struct Pool {
    place: Place,
    permits: Arc<Semaphore>,
    /// `None` once it is closed.
    idle: Mutex<Option<Vec<Connection>>>,
    size: u32,
}

impl Pool {
    /// At most `size` connections, opened when they are needed.
    pub(super) fn new(place: Place, size: usize) -> Self {
        let size = u32::try_from(size.max(1)).unwrap_or(u32::MAX);
        Self { place, permits: Arc::new(Semaphore::new(size as usize)), idle: Mutex::new(Some(Vec::new())), size }
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    fn idle(&self) -> MutexGuard<'_, Option<Vec<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// [`StorageError::Closed`].
    pub(super) fn check(&self) -> Result<(), StorageError> {
        if self.idle().is_some() { Ok(()) } else { Err(StorageError::Closed) }
    }

    /// Runs a read.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Connection, &Place) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        // The semaphore is closed together with the pool.
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| StorageError::Closed)?;
        let pool = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            // The read goes on where nobody waits for it any more, and its permit with it.
            let _permit = permit;
            pool.read_now(read)
        })
        .await;
        done.unwrap_or_else(|error| Err(StorageError::failed(format!("read {}", self.place.name()), error)))
    }

    /// Runs a read on this thread.
    pub(super) fn read_now<T>(&self, read: impl FnOnce(&Connection, &Place) -> Result<T, StorageError>) -> Result<T, StorageError> {
        let idle = self.idle().as_mut().ok_or(StorageError::Closed)?.pop();
        let connection = match idle {
            Some(connection) => connection,
            None => schema::reader(&self.place.0).map_err(|error| self.place.unread(error))?,
        };
        let result = snapshot(&connection, &self.place, |connection| read(connection, &self.place));
        if let (true, Some(idle)) = (connection.is_autocommit(), self.idle().as_mut()) {
            idle.push(connection);
        }
        result
    }

    /// Waits for the reads that run and closes all connections.
    pub(super) async fn close(&self) {
        self.idle().take();
        // All permits are free when no read runs. A second close finds the semaphore closed.
        if let Ok(permits) = self.permits.acquire_many(self.size).await {
            permits.forget();
        }
        self.permits.close();
    }
}

/// Runs a read of several statements on one state of the database.
pub(super) fn snapshot<T>(
    connection: &Connection,
    place: &Place,
    read: impl FnOnce(&Connection) -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    let run =
        |sql| connection.prepare_cached(sql).and_then(|mut statement| statement.execute([])).map_err(|error| place.failed("read", error));
    run("BEGIN")?;
    let result = read(connection);
    // A read leaves nothing behind that could fail to be written.
    run("ROLLBACK")?;
    result
}
