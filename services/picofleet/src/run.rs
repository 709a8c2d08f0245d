//! `picofleet run`: one prompt, shown as it is answered.

mod printer;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use picofleet_harness::config::{CONFIG, ConversationConfig, ModelRef};
use picofleet_harness::effects::Services;
use picofleet_harness::line::Followed;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::wire::HostCall;
use picofleet_session::storage::{SessionCreate, SessionQuery, Store};
use picofleet_session::{Clock, InputState, ROOT_CONVERSATION_ID, SessionId, SubmissionRecord, SubmissionState};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};

use crate::config::Config;
use crate::engine::Engine;
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

pub(crate) async fn run(args: RunArgs, config: &Config) -> anyhow::Result<()> {
    let store = SqliteStore::open(&args.store, SqliteOptions::default()).with_context(|| format!("open {}", args.store.display()))?;
    let store: Arc<dyn Store> = Arc::new(store);
    let workspace = args.workspace.as_deref().unwrap_or(&config.tools.workspace);
    let (services, default) = crate::services::services(config, workspace)?;
    let session = session(&*store, &args).await?;
    let engine = Engine::start(Arc::clone(&store), services.clone());
    let result = converse(&engine, session, &args, &services, default).await;
    engine.close().await?;
    store.close().await?;
    result
}

/// The session that the arguments name, or a new one.
async fn session(store: &dyn Store, args: &RunArgs) -> anyhow::Result<SessionId> {
    if let Some(id) = args.session {
        return match store.session(id).await? {
            Some(session) => Ok(session.id),
            None => bail!("there is no session {id} in {}", args.store.display()),
        };
    }
    if args.latest {
        return match newest(store).await? {
            Some(id) => Ok(id),
            None => bail!("there is no session in {} yet; leave out --continue", args.store.display()),
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
    configure(engine, session, args, services, default).await?;
    let mut printer = Printer::new();
    let mut watch = engine.watch(session, ROOT_CONVERSATION_ID).await?;
    let submission: Option<SubmissionRecord> = match &args.prompt {
        Some(prompt) => {
            let call = HostCall::Submit { conversation: ROOT_CONVERSATION_ID, draft: SubmissionDraft::input(prompt.as_str()) };
            Some(engine.host(session, call).await?)
        }
        None => None,
    };
    let mut interrupts = 0;
    loop {
        let wanted = submission.as_ref().map(|submission| submission.id);
        if wanted.is_none() && printer::idle(watch.documents()) {
            break;
        }
        tokio::select! {
            followed = watch.next() => match followed {
                Followed::Frame(frame) => {
                    printer.frame(&frame, watch.documents())?;
                    if let Some(record) = frame.submissions.iter().find(|record| Some(record.id) == wanted && record.settled()) {
                        printer.end(watch.documents())?;
                        return verdict(record);
                    }
                }
                Followed::Gap => watch = engine.watch(session, ROOT_CONVERSATION_ID).await?,
                Followed::End => bail!("the session ended"),
            },
            interrupt = tokio::signal::ctrl_c() => {
                interrupt.context("wait for Ctrl-C")?;
                interrupts += 1;
                if interrupts > 1 {
                    bail!("left; the work goes on with: picofleet run --session {session}");
                }
                printer.note("aborting; press Ctrl-C again to leave")?;
                let _: picofleet_session::Json = engine.host(session, HostCall::Abort { conversation: ROOT_CONVERSATION_ID, background: false }).await?;
            }
        }
    }
    printer.end(watch.documents())
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
        let (provider, model_id) = model.split_once('/').with_context(|| format!("{model:?} is no PROVIDER/MODEL"))?;
        config.model = Some(ModelRef { provider: provider.to_owned(), model_id: model_id.to_owned() });
    }
    if config.model.is_none() {
        config.model = default;
        config.active_tools = services.registry.snapshot().tool_names();
    }
    if let Some(tools) = &args.tools {
        let known = services.registry.snapshot().tool_names();
        if let Some(unknown) = tools.iter().find(|tool| !known.contains(tool)) {
            bail!("there is no tool {unknown:?}; there are: {}", known.join(", "));
        }
        config.active_tools.clone_from(tools);
    }
    if stored.as_ref() != Some(&config) {
        let call = HostCall::Configure { conversation: ROOT_CONVERSATION_ID, config: Box::new(config) };
        let _: picofleet_session::Json = engine.host(session, call).await?;
    }
    Ok(())
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
