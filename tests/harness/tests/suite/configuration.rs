//! The configuration of a conversation (section 2.2).

use picofleet_harness::config::{CompactionPolicy, ConfigPatch, QueueMode, RetryPolicy, ToolExecution};
use picofleet_harness::host::HostError;
use picofleet_harness_tests::{Stage, scenario};
use picofleet_models::model::ThinkingLevel;
use picofleet_session::Json;

fn field<T: std::fmt::Debug>(result: Result<T, HostError>) -> String {
    match result {
        Err(HostError::Invalid { field: Some(field), .. }) => field,
        other => panic!("{other:?}"),
    }
}

scenario!(getters_give_defaults_and_setters_remove, async |kit| {
    let root = kit.root().await;
    assert_eq!(root.model().await.unwrap(), Some(Stage::model_ref()));
    assert_eq!(root.thinking_level().await.unwrap(), ThinkingLevel::Off);
    assert_eq!(root.stream_options().await.unwrap().to_string(), "{}");
    let default = RetryPolicy { enabled: true, max_retries: 3, base_delay_ms: 2_000.0, max_agent_delay_ms: Some(60_000.0) };
    assert_eq!(root.retry_policy().await.unwrap(), default);
    assert_eq!(root.tool_execution().await.unwrap(), ToolExecution::Parallel);
    assert_eq!((root.steering_mode().await.unwrap(), root.follow_up_mode().await.unwrap()), (QueueMode::OneAtATime, QueueMode::OneAtATime));
    let compaction = CompactionPolicy { enabled: true, reserve_tokens: 16_384, keep_recent_tokens: 20_000, background_tokens: 32_768 };
    assert_eq!(root.compaction().await.unwrap(), compaction);
    let before = root.config().await.unwrap();

    let retry = RetryPolicy { enabled: false, ..default };
    root.set_retry_policy(Some(retry)).await.unwrap();
    root.set_tool_execution(Some(ToolExecution::Sequential)).await.unwrap();
    root.set_steering_mode(Some(QueueMode::All)).await.unwrap();
    root.set_follow_up_mode(Some(QueueMode::All)).await.unwrap();
    root.set_compaction(Some(CompactionPolicy { enabled: false, ..compaction })).await.unwrap();
    root.set_thinking_level(ThinkingLevel::High).await.unwrap();
    kit.reopen().await;
    let root = kit.root().await;
    assert_eq!(root.retry_policy().await.unwrap(), retry);
    assert_eq!(root.tool_execution().await.unwrap(), ToolExecution::Sequential);
    assert_eq!((root.steering_mode().await.unwrap(), root.follow_up_mode().await.unwrap()), (QueueMode::All, QueueMode::All));
    assert!(!root.compaction().await.unwrap().enabled);
    assert_eq!(root.thinking_level().await.unwrap(), ThinkingLevel::High);

    let removed = ConfigPatch {
        retry: Some(None),
        tool_execution: Some(None),
        steering_mode: Some(None),
        follow_up_mode: Some(None),
        compaction: Some(None),
        thinking_level: Some("off".to_owned()),
        ..ConfigPatch::default()
    };
    root.update(removed).await.unwrap();
    assert_eq!(root.config().await.unwrap(), before);
    assert_eq!(kit.stage.asked().len(), 0);
});

scenario!(active_tools_are_checked_as_a_whole, async |kit| {
    let root = kit.root().await;
    root.set_active_tools(["echo", "gate"]).await.unwrap();
    assert_eq!(field(root.set_active_tools(["gate", "ghost"]).await), "activeTools[1]");
    assert_eq!(field(root.set_active_tools(["gate", "gate"]).await), "activeTools[1]");
    assert_eq!(root.active_tools().await.unwrap(), ["echo", "gate"]);
    // What was active already stays, whatever is registered.
    let stale = picofleet_harness::config::ConversationConfig { active_tools: vec!["ghost".to_owned()], ..root.config().await.unwrap() };
    let call = picofleet_harness::wire::HostCall::Configure { conversation: root.id(), config: Box::new(stale) };
    kit.call(picofleet_harness::wire::Request::Host(Box::new(call))).await;
    root.set_active_tools(["echo", "ghost"]).await.unwrap();
    assert_eq!(root.active_tools().await.unwrap(), ["echo", "ghost"]);
});

scenario!(a_value_that_is_not_allowed_writes_nothing, async |kit| {
    let root = kit.root().await;
    let before = root.config().await.unwrap();
    let retry = |base_delay_ms| Some(RetryPolicy { base_delay_ms, ..RetryPolicy::default() });
    assert_eq!(field(root.set_retry_policy(retry(-1.0)).await), "retry.baseDelayMs");
    assert_eq!(field(root.set_retry_policy(retry(f64::NAN)).await), "retry");
    let compaction = CompactionPolicy { keep_recent_tokens: -1, ..CompactionPolicy::default() };
    assert_eq!(field(root.set_compaction(Some(compaction)).await), "compaction.keepRecentTokens");
    let options = Json::parse(br#"{"temperature":1}"#).unwrap();
    assert_eq!(field(root.set_stream_options(options).await), "streamOptions.temperature");
    let retry = RetryPolicy { base_delay_ms: -1.0, ..RetryPolicy::default() };
    let config = picofleet_harness::config::ConversationConfig { retry: Some(retry), ..before.clone() };
    let call = picofleet_harness::wire::HostCall::Configure { conversation: root.id(), config: Box::new(config) };
    let answer = kit.call(picofleet_harness::wire::Request::Host(Box::new(call))).await;
    let picofleet_harness::wire::Answer::Failed(picofleet_harness::wire::HostFailure::InvalidField { field, .. }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(field, "retry.baseDelayMs");
    assert_eq!(root.config().await.unwrap(), before);
});
