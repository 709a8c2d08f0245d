//! The schema: how it is brought up, and what is checked before it is used (`protocol.md` 1 and 8).

use std::sync::Arc;

use picofleet_session::PartitionCount;
use picofleet_session::storage::StorageError;
use tokio_postgres::Client;

use super::connect::{Access, Purpose};
use super::errors::{OpenError, Place};

mod embedded {
    refinery::embed_migrations!("../../migrations");
}

/// The schema that this program knows.
pub(super) const VERSION: u32 = 1;

/// The lock of whoever migrates: "picofle" as a number.
const LOCK: i64 = 0x0070_6963_6f66_6c65;

/// Brings the schema up to this program's version. `partitions` is for a new one and must be what an older one has.
pub(super) async fn migrate(access: &Access, partitions: Option<PartitionCount>) -> Result<(), StorageError> {
    let place = &access.place;
    let mut client = access.connect(Purpose::Migrate).await.map_err(|error| place.open(error))?;
    settings(&client, place).await?;
    // Somebody else may migrate at this moment. The lock goes with the connection.
    client.execute("SELECT pg_advisory_lock($1)", &[&LOCK]).await.map_err(|error| place.open(error))?;
    let found = version(&client, place).await?;
    if found > VERSION {
        return compatible(&client, place, found).await;
    }
    let runner = embedded::migrations::runner().set_abort_missing(false);
    runner.run_async(&mut client).await.map_err(|error| place.open(OpenError::Migration(Arc::new(error))))?;
    let count = i64::from(partitions.unwrap_or_default().get());
    let first = "INSERT INTO meta (key, value) VALUES ('partitions', $1) ON CONFLICT DO NOTHING";
    client.execute(first, &[&count]).await.map_err(|error| place.open(error))?;
    let rows = "INSERT INTO partition (id) SELECT generate_series(0, (SELECT value FROM meta WHERE key = 'partitions') - 1) ON CONFLICT DO NOTHING";
    client.execute(rows, &[]).await.map_err(|error| place.open(error))?;
    counted(&client, place, partitions).await.map(drop)
}

/// Checks server and schema, and gives the count of partitions.
pub(super) async fn check(client: &Client, place: &Place, asked: Option<PartitionCount>) -> Result<PartitionCount, StorageError> {
    settings(client, place).await?;
    let found = version(client, place).await?;
    if found < VERSION {
        return Err(place.open(OpenError::NotMigrated { found, known: VERSION }));
    }
    compatible(client, place, found).await?;
    counted(client, place, asked).await
}

/// Refuses a server that loses what it acknowledged, or that can't do what we need.
async fn settings(client: &Client, place: &Place) -> Result<(), StorageError> {
    let sql = "SELECT current_setting('server_version_num')::int4, current_setting('fsync'), current_setting('synchronous_commit'),
        current_setting('server_encoding')";
    let row = client.query_one(sql, &[]).await.map_err(|error| place.open(error))?;
    let (version, fsync, synchronous, encoding): (i32, String, String, String) = (row.get(0), row.get(1), row.get(2), row.get(3));
    let refused = match () {
        () if version < 140_000 => OpenError::OldServer(version / 10_000),
        () if fsync == "off" => OpenError::Unsafe("fsync"),
        () if synchronous == "off" => OpenError::Unsafe("synchronous_commit"),
        () if encoding != "UTF8" => OpenError::Encoding(encoding),
        () => return Ok(()),
    };
    Err(place.open(refused))
}

/// The newest migration that was applied.
async fn version(client: &Client, place: &Place) -> Result<u32, StorageError> {
    let failed = |error| place.open(error);
    let there = client.query_one("SELECT to_regclass('refinery_schema_history') IS NOT NULL", &[]).await.map_err(failed)?;
    if !there.get::<_, bool>(0) {
        return Ok(0);
    }
    let row = client.query_one("SELECT coalesce(max(version), 0)::bigint FROM refinery_schema_history", &[]).await.map_err(failed)?;
    Ok(u32::try_from(row.get::<_, i64>(0)).unwrap_or(u32::MAX))
}

/// A newer schema says from which version on programs can use it.
async fn compatible(client: &Client, place: &Place, found: u32) -> Result<(), StorageError> {
    let from = meta(client, place, "compatible_from").await?;
    let compatible_from = u32::try_from(from.unwrap_or(i64::MAX)).unwrap_or(u32::MAX);
    if compatible_from > VERSION {
        return Err(StorageError::SchemaTooNew { store: place.name(), found, compatible_from, known: VERSION });
    }
    Ok(())
}

async fn counted(client: &Client, place: &Place, asked: Option<PartitionCount>) -> Result<PartitionCount, StorageError> {
    let stored = meta(client, place, "partitions").await?.unwrap_or_default();
    if let Some(asked) = asked.filter(|asked| i64::from(asked.get()) != stored) {
        return Err(place.open(OpenError::Partitions { stored, asked: asked.get() }));
    }
    let count = u16::try_from(stored).ok().and_then(PartitionCount::new);
    count.ok_or_else(|| place.corrupt("the count of partitions", format!("it is {stored}")).into())
}

async fn meta(client: &Client, place: &Place, key: &str) -> Result<Option<i64>, StorageError> {
    let row = client.query_opt("SELECT value FROM meta WHERE key = $1", &[&key]).await.map_err(|error| place.open(error))?;
    Ok(row.map(|row| row.get(0)))
}
