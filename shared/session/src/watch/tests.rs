use super::*;

fn id() -> DocumentId {
    DocumentId::new(7).unwrap()
}

fn watch(observers: &Arc<Observers>) -> Watch<Json> {
    observers.watch(id(), Json::object([("n", 0)]), ("t", 1))
}

fn commit(observers: &Observers, n: i64) {
    let [base, value] = [n - 1, n].map(|n| Json::object([("n", n)]));
    let ops: Arc<[Op]> = Arc::from([Op::Replace(value.clone())]);
    let change = Some((&base, &value, &ops));
    observers.deliver(&Delivery { document: id(), change, version: 1, migrated: false, retired: false, seq: Seq(1) });
}

fn buffered(watch: &Watch<Json>) -> usize {
    watch.channel.state.lock().unwrap().pending.len()
}

fn reason(watch: &Watch<Json>) -> Option<&'static str> {
    watch.end().map(|end| end.reason())
}

#[test]
fn a_cancelled_watch_gets_and_keeps_nothing() {
    let observers = Arc::default();
    let token = CancellationToken::new();
    let cancelled = watch(&observers).until(token.clone());
    let other = watch(&observers);
    commit(&observers, 1);
    assert_eq!((buffered(&cancelled), buffered(&other)), (1, 1));
    token.cancel();
    commit(&observers, 2);
    assert_eq!((buffered(&cancelled), buffered(&other)), (0, 2));
    assert_eq!((reason(&cancelled), reason(&other)), (Some("cancelled"), None));
}

#[test]
fn a_cancellation_that_came_first_is_the_reason() {
    type Later = fn(&Watch<Json>, &Arc<Observers>);
    let later: [Later; 4] = [
        |_, observers| observers.end_all(&WatchEnd::SessionClosed),
        |_, observers| observers.end_all(&WatchEnd::Takeover),
        |watch, _| assert_eq!(watch.stopper().stop().reason(), "cancelled"),
        |_, observers| {
            observers.deliver(&Delivery { document: id(), change: None, version: 1, migrated: false, retired: true, seq: Seq(1) });
        },
    ];
    for end in later {
        let observers = Arc::default();
        let token = CancellationToken::new();
        let watch = watch(&observers).until(token.clone());
        token.cancel();
        end(&watch, &observers);
        assert_eq!((reason(&watch), buffered(&watch)), (Some("cancelled"), 0));
    }
}

#[test]
fn a_cancellation_that_came_later_is_not_the_reason() {
    let observers = Arc::default();
    let token = CancellationToken::new();
    let watch = watch(&observers).until(token.clone());
    observers.end_all(&WatchEnd::SessionClosed);
    token.cancel();
    assert_eq!(reason(&watch), Some("session_closed"));
    assert_eq!(reason(&watch.until(CancellationToken::new())), Some("session_closed"));
}

#[test]
fn nobody_has_to_ask_for_a_cancellation_to_count() {
    let observers = Arc::default();
    let token = CancellationToken::new();
    token.cancel();
    assert_eq!(reason(&watch(&observers).until(token)), Some("cancelled"));
    // Every token that it was bound to counts.
    let first = CancellationToken::new();
    let both = watch(&observers).until(first.clone()).until(CancellationToken::new());
    first.cancel();
    assert_eq!(reason(&both), Some("cancelled"));
}
