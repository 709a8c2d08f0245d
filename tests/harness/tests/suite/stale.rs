//! Decisions whose ground moved before they landed (section 8.3): the phase runs again.

use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use picofleet_harness::config::ConfigPatch;
use picofleet_harness::hooks::HookError;
use picofleet_harness::host::Conversation;
use picofleet_harness::registry::{PromptInput, PromptSection};
use picofleet_harness_tests::{Reply, scenario};

/// Changes the configuration the first time that it is rendered: the plan of that phase is made for the one before.
struct Meddler {
    conversation: Mutex<Option<Conversation>>,
    offered: Arc<Mutex<Vec<usize>>>,
}

impl PromptSection for Meddler {
    fn render<'a>(&'a self, input: &'a PromptInput) -> BoxFuture<'a, Result<Option<String>, HookError>> {
        self.offered.lock().unwrap().push(input.tools.len());
        let conversation = self.conversation.lock().unwrap().take();
        async move {
            if let Some(conversation) = conversation {
                let patch = ConfigPatch {
                    active_tools: Some(vec!["echo".to_owned()]),
                    thinking_level: Some("high".to_owned()),
                    ..ConfigPatch::default()
                };
                conversation.update(patch).await.unwrap();
            }
            Ok(Some("section".to_owned()))
        }
        .boxed()
    }
}

scenario!(a_plan_for_another_configuration_is_made_again, async |kit| {
    let root = kit.root().await;
    root.set_active_tools(["echo", "gate"]).await.unwrap();
    let offered = Arc::new(Mutex::new(Vec::new()));
    let meddler = Meddler { conversation: Mutex::new(Some(root.clone())), offered: Arc::clone(&offered) };
    kit.registry.prompt("meddler", false, meddler).unwrap();
    kit.turn("go", Reply::text("x")).await;
    assert_eq!(*offered.lock().unwrap(), [2, 1], "the second plan saw the new configuration");
    let asked = kit.stage.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].options.reasoning, Some(picofleet_models::model::ThinkingLevel::High));
    let systems = kit.entries(&root).await.into_iter().filter(|entry| entry.kind == "pi.system").count();
    assert_eq!(systems, 1, "nothing of the first plan is written");
});
