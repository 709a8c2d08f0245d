//! `picofleet run`: one prompt, shown as it is answered.

mod printer;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use picofleet_harness::config::{CONFIG, ConversationConfig, ModelRef};
use picofleet_harness::effects::Services;
use picofleet_harness::line::Followed;
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::wire::HostCall;
use picofleet_session::storage::{SessionCreate, SessionQuery, Store};
use picofleet_session::{Clock, InputState, ROOT_CONVERSATION_ID, SessionId, SubmissionId, SubmissionRecord, SubmissionState};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::engine::Engine;
use crate::failure::Failure;
use printer::Printer;

/// What `picofleet run` takes.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// What to say to the model; without it unfinished work of the session goes on
    prompt: Option<String>,
    /// The SQLite file
    #[arg(long, default_value = "picofleet.db")]
    store: PathBuf,
    /// The session to go on with
    #[arg(long, conflicts_with = "latest")]
    session: Option<SessionId>,
    /// Go on with the newest session
    #[arg(long = "continue")]
    latest: bool,
    /// The model, as PROVIDER/MODEL
    #[arg(long)]
    model: Option<String>,
    /// The tools to offer, by name and with commas between; all of them where it is left out
    #[arg(long, value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// The folder that the tools work in, instead of the configured one
    #[arg(long)]
    workspace: Option<PathBuf>,
}

pub(crate) async fn run(args: RunArgs, registry: Registry, config: &Config) -> anyhow::Result<()> {
    ensure!(
        args.prompt.is_some() || args.session.is_some() || args.latest,
        Failure::Usage("there is nothing to do: say something to the model, or name a session with --session or --continue".to_owned())
    );
    let store = SqliteStore::open(&args.store, SqliteOptions::default()).with_context(|| format!("open {}", args.store.display()))?;
    let store: Arc<dyn Store> = Arc::new(store);
    let workspace = args.workspace.as_deref().unwrap_or(&config.tools.workspace);
    let (services, default) = crate::services::services(registry, config, workspace).await?;
    let result = with_engine(&store, &args, services, default).await;
    store.close().await?;
    result
}

async fn with_engine(store: &Arc<dyn Store>, args: &RunArgs, services: Services, default: Option<ModelRef>) -> anyhow::Result<()> {
    let session = session(&**store, args).await?;
    let engine = Engine::start(Arc::clone(store), services.clone());
    let result = converse(&engine, session, args, &services, default).await;
    engine.close().await?;
    result
}

/// The session that the arguments name, or a new one.
async fn session(store: &dyn Store, args: &RunArgs) -> anyhow::Result<SessionId> {
    if let Some(id) = args.session {
        return match store.session(id).await? {
            Some(session) => Ok(session.id),
            None => bail!(Failure::Usage(format!("there is no session {id} in {}; name its file with --store", args.store.display()))),
        };
    }
    if args.latest {
        return match newest(store).await? {
            Some(id) => Ok(id),
            None => bail!(Failure::Usage(format!("there is no session in {} yet; leave out --continue", args.store.display()))),
        };
    }
    Ok(store.create(SessionCreate::new(Clock::system().now())).await?.session.id)
}

async fn newest(store: &dyn Store) -> anyhow::Result<Option<SessionId>> {
    let mut newest = None;
    let mut cursor = None;
    loop {
        let page = store.sessions(SessionQuery::default(), picofleet_session::storage::PAGE_MAX, cursor).await?;
        newest = page.items.into_iter().map(|session| (session.created_at, session.id)).chain(newest).max();
        cursor = page.next;
        if cursor.is_none() {
            return Ok(newest.map(|(_, id)| id));
        }
    }
}

async fn converse(
    engine: &Engine,
    session: SessionId,
    args: &RunArgs,
    services: &Services,
    default: Option<ModelRef>,
) -> anyhow::Result<()> {
    let _: picofleet_session::Json = engine.host(session, HostCall::Root).await?;
    // At once: unfinished work went on when the session opened, and what it does is shown.
    let mut watch = engine.watch(session, ROOT_CONVERSATION_ID).await?;
    let mut printer = Printer::new(watch.documents());
    configure(engine, session, args, services, default).await?;
    let submission: Option<SubmissionRecord> = match &args.prompt {
        Some(prompt) => {
            let call = HostCall::Submit { conversation: ROOT_CONVERSATION_ID, draft: SubmissionDraft::input(prompt.as_str()) };
            Some(engine.host(session, call).await?)
        }
        None => None,
    };
    // One listener for all the time: a signal between two looks is not lost.
    let mut signals = signal(SignalKind::interrupt()).context("listen for Ctrl-C")?;
    let mut interrupts = 0;
    loop {
        let wanted = submission.as_ref().map(|submission| submission.id);
        if wanted.is_none() && printer::idle(watch.documents()) {
            break;
        }
        tokio::select! {
            followed = watch.next() => {
                let seen = match followed {
                    Followed::Frame(frame) => {
                        printer.frame(&frame, watch.documents())?;
                        frame.submissions.into_iter().find(|record| Some(record.id) == wanted)
                    }
                    Followed::Gap => {
                        watch = engine.watch(session, ROOT_CONVERSATION_ID).await?;
                        // It may have been settled in a frame that is missing, and no other would say so.
                        look(engine, session, wanted).await?.map(Arc::new)
                    }
                    Followed::End => bail!("the session ended"),
                };
                if let Some(record) = seen.filter(|record| record.settled()) {
                    printer.end(watch.documents(), session)?;
                    return match verdict(&record) {
                        Err(error) if interrupts > 0 => Err(error.context(Failure::Interrupted("aborted by Ctrl-C".to_owned()))),
                        verdict => verdict,
                    };
                }
            }
            _ = signals.recv() => {
                interrupts += 1;
                if interrupts > 1 {
                    bail!(Failure::Interrupted(format!("left; the work goes on with: picofleet run --session {session} --store {}", args.store.display())));
                }
                printer.note("aborting; press Ctrl-C again to leave")?;
                let _: picofleet_session::Json = engine.host(session, HostCall::Abort { conversation: ROOT_CONVERSATION_ID, background: false }).await?;
            }
        }
    }
    printer.end(watch.documents(), session)?;
    match printer.failure() {
        Some(failure) => bail!("unanswered: {failure}"),
        None => Ok(()),
    }
}

/// A submission as it is now.
async fn look(engine: &Engine, session: SessionId, wanted: Option<SubmissionId>) -> anyhow::Result<Option<SubmissionRecord>> {
    let Some(submission) = wanted else { return Ok(None) };
    engine.host(session, HostCall::WaitSubmission { submission, timeout_ms: 0 }).await.map(Some)
}

/// Sets the model and the tools that the arguments name; a new session gets all tools and the default model.
async fn configure(
    engine: &Engine,
    session: SessionId,
    args: &RunArgs,
    services: &Services,
    default: Option<ModelRef>,
) -> anyhow::Result<()> {
    let watch = engine.watch(session, ROOT_CONVERSATION_ID).await?;
    let stored: Option<ConversationConfig> = watch.documents().get(CONFIG.kind).map(picofleet_session::Json::to).transpose()?;
    let mut config = stored.clone().unwrap_or_default();
    if let Some(model) = &args.model {
        config.model = Some(named(model, services)?);
    }
    if config.model.is_none() {
        config.model = default;
    }
    ensure!(
        config.model.is_some(),
        Failure::Usage("there is no default model; name one of `picofleet models list` with --model".to_owned())
    );
    if let Some(tools) = &args.tools {
        let known = services.registry.snapshot().tool_names();
        if let Some(unknown) = tools.iter().find(|tool| !known.contains(tool)) {
            bail!(Failure::Usage(format!("there is no tool {unknown:?}; there are: {}", known.join(", "))));
        }
        config.active_tools.clone_from(tools);
    }
    if stored.as_ref() != Some(&config) {
        let call = HostCall::Configure { conversation: ROOT_CONVERSATION_ID, config: Box::new(config) };
        let _: picofleet_session::Json = engine.host(session, call).await?;
    }
    Ok(())
}

/// The model of this name, if it is configured.
fn named(name: &str, services: &Services) -> anyhow::Result<ModelRef> {
    let Some((provider, model_id)) = name.split_once('/') else {
        bail!(Failure::Usage(format!("{name:?} is no PROVIDER/MODEL; `picofleet models list` shows those that are configured")));
    };
    let model = ModelRef { provider: provider.to_owned(), model_id: model_id.to_owned() };
    if services.models.find(&model).is_none() {
        bail!(Failure::Usage(format!("there is no model {name}; `picofleet models list` shows those that are configured")));
    }
    Ok(model)
}

fn verdict(record: &SubmissionRecord) -> anyhow::Result<()> {
    match &record.state {
        SubmissionState::Input(InputState::Unanswered { reason, detail, .. }) => {
            let detail = detail
                .as_ref()
                .map(|detail| format!(": {}", detail.as_str().map_or_else(|| detail.to_string(), std::borrow::Cow::into_owned)));
            bail!("unanswered, {reason}{}", detail.unwrap_or_default())
        }
        _ => Ok(()),
    }
}
