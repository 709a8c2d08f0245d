//! The schema, and what a store is not opened on (`protocol.md` 1 and 8).

use picofleet_session::PartitionCount;
use picofleet_session::storage::{StorageError, Store as _};
use picofleet_storage::conformance::Database;
use picofleet_storage::postgres::{OpenError, PostgresOptions, PostgresStore};

async fn refused(database: &Database, options: PostgresOptions) -> StorageError {
    PostgresStore::open(database.url(), options).await.err().expect("it was opened")
}

fn reason(error: &StorageError) -> &OpenError {
    let StorageError::Failed { cause, .. } = error else { panic!("{error:?}") };
    cause.downcast_ref().unwrap_or_else(|| panic!("{error:?}"))
}

/// Several that migrate at once wait for each other, and doing it again changes nothing.
#[tokio::test]
async fn migrating_twice_and_at_once_is_the_same() {
    let database = Database::empty().await;
    let missing = refused(&database, PostgresOptions::default()).await;
    assert!(matches!(reason(&missing), OpenError::NotMigrated { found: 0, .. }), "{missing:?}");
    let count = PartitionCount::new(40_000);
    let all = (0..4).map(|_| PostgresStore::migrate(database.url(), count));
    for migrated in futures::future::join_all(all).await {
        migrated.unwrap();
    }
    PostgresStore::migrate(database.url(), None).await.unwrap();
    let store = PostgresStore::open(database.url(), PostgresOptions::default()).await.unwrap();
    assert_eq!(Some(store.partitions()), count);
    let rows: i64 = database.client().await.query_one("SELECT count(*) FROM partition", &[]).await.unwrap().get(0);
    assert_eq!(rows, 40_000);
    let other = PostgresOptions { partitions: PartitionCount::new(7), ..PostgresOptions::default() };
    let error = refused(&database, other).await;
    assert!(matches!(reason(&error), OpenError::Partitions { stored: 40_000, asked: 7 }), "{error:?}");
    let error = PostgresStore::migrate(database.url(), PartitionCount::new(7)).await.unwrap_err();
    assert!(matches!(reason(&error), OpenError::Partitions { .. }), "{error:?}");
}

/// A newer schema is used as long as it says that this program can.
#[tokio::test]
async fn a_newer_schema_says_who_can_use_it() {
    let database = Database::new().await;
    let client = database.client().await;
    let newer =
        "INSERT INTO refinery_schema_history (version, name, applied_on, checksum) VALUES (99, 'later', '2026-01-01T00:00:00Z', '1')";
    client.batch_execute(newer).await.unwrap();
    PostgresStore::open(database.url(), PostgresOptions::default()).await.unwrap();
    PostgresStore::migrate(database.url(), None).await.unwrap();
    client.batch_execute("UPDATE meta SET value = 98 WHERE key = 'compatible_from'").await.unwrap();
    for error in [refused(&database, PostgresOptions::default()).await, PostgresStore::migrate(database.url(), None).await.unwrap_err()] {
        assert!(matches!(error, StorageError::SchemaTooNew { found: 99, compatible_from: 98, .. }), "{error:?}");
    }
}

/// A server that answers before it wrote is refused.
#[tokio::test]
async fn a_server_that_loses_commits_is_refused() {
    let database = Database::new().await;
    let client = database.client().await;
    let set = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$";
    client.batch_execute(set).await.unwrap();
    let error = refused(&database, PostgresOptions::default()).await;
    assert!(matches!(reason(&error), OpenError::Unsafe("synchronous_commit")), "{error:?}");
}
