//! What the system must leave to a process before it begins.

use std::fs::File;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// How many files beside those that are open a process needs: the runtime alone takes some ten, a store and its readers the rest.
const FILES_MIN: usize = 32;

/// Whether so many files can be opened. The runtime panics where it can't open its own.
pub(crate) fn files() -> anyhow::Result<()> {
    let mut open = Vec::with_capacity(FILES_MIN);
    while open.len() < FILES_MIN {
        match File::open("/dev/null") {
            Ok(file) => open.push(file),
            Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
                let limit = getrlimit(Resource::Nofile).current.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
                let (could, lack) = (open.len(), FILES_MIN - open.len());
                let text = format!(
                    "this process may open too few files: its limit is {limit}, of which {could} are left, and {lack} more are needed; \
                     raise it, with `ulimit -n 1024` in a shell or LimitNOFILE of a service"
                );
                anyhow::bail!(text);
            }
            // Another reason than the limit: what needs files says it.
            Err(_) => break,
        }
    }
    Ok(())
}
