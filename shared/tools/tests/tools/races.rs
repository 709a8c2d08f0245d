//! What happens to files while others work on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use picofleet_harness::tools::{EnvError, FileSystem as _};
use picofleet_tools::Edit;

use crate::support::{Place, link};

/// A directory that is exchanged all the time for a link that leads outside: nothing outside is ever read or written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_exchanged_during_the_call_leads_nowhere() {
    let place = Place::new();
    place.put("d/f", "inside");
    std::fs::create_dir(place.outside("secret")).unwrap();
    std::fs::write(place.outside("secret/f"), "secret").unwrap();
    link(place.outside("secret"), place.at("evil"));
    let stop = Arc::new(AtomicBool::new(false));
    let (workspace, ended) = (place.env.workspace().to_owned(), Arc::clone(&stop));
    let exchange = std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(rustix::fs::CWD, workspace.join("d"), rustix::fs::CWD, workspace.join("evil"), flags).unwrap();
        }
    });
    let (mut inside, mut refused) = (0, 0);
    for _ in 0..1_500 {
        match place.env.read("d/f", 100).await {
            Ok(content) => {
                assert_ne!(content, b"secret");
                inside += 1;
            }
            Err(EnvError::Outside { .. } | EnvError::NotFound { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        let written = place.env.write("d/f", b"written").await;
        assert!(matches!(written, Ok(()) | Err(EnvError::Outside { .. } | EnvError::NotFound { .. })), "{written:?}");
        let made = place.env.write("d/new/g", b"written").await;
        assert!(made.is_ok() || matches!(made, Err(EnvError::Outside { .. } | EnvError::NotFound { .. })), "{made:?}");
    }
    stop.store(true, Ordering::Relaxed);
    exchange.join().unwrap();
    assert!(inside > 0 && refused > 0, "both were met: {inside}, {refused}");
    assert_eq!(std::fs::read_to_string(place.outside("secret/f")).unwrap(), "secret");
    assert_eq!(std::fs::read_dir(place.outside("secret")).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_sees_the_old_or_the_new_content() {
    let place = Place::new();
    let (old, new) = (vec![b'a'; 300_000], vec![b'b'; 200_000]);
    place.put("f", &old);
    let env = place.env.clone();
    let contents = [new.clone(), old.clone()];
    let writer = tokio::spawn(async move {
        for round in 0..100 {
            env.write("f", &contents[round % 2]).await.unwrap();
        }
    });
    while !writer.is_finished() {
        let content = std::fs::read(place.at("f")).unwrap();
        assert!(content == old || content == new);
    }
    writer.await.unwrap();
}

/// Edits of one file at the same time: none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_at_the_same_time_are_all_done() {
    let place = Place::new();
    place.put("f", "<0>\n<1>\n");
    let tool = Edit::new();
    for _ in 0..20 {
        place.put("f", "<0>\n<1>\n");
        let edit = |number: u32| format!(r#"{{"path": "f", "edits": [{{"oldText": "<{number}>", "newText": "done {number}"}}]}}"#);
        let (one, two) = (edit(0), edit(1));
        let (one, two) = tokio::join!(place.call(&tool, &one), place.call(&tool, &two));
        assert!(one.result.is_ok() && two.result.is_ok());
        assert_eq!(place.get("f"), "done 0\ndone 1\n");
    }
}
