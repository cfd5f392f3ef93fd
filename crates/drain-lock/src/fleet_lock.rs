//! FleetLock: the protocol by which operating systems that update themselves ask before they reboot (Zincati, Flatcar, and
//! whatever reboots by it).
//!
//! `POST /v1/pre-reboot` asks for a drain of the machine's node, evicted by drain-lock, and answers 200 once that node is
//! really drained; until then 423. `POST /v1/steady-state` takes the request back: the node is uncordoned, and what its
//! drain holds returns as its pods do. `GET /v1/plan?node=` says what a drain of a node would do. A group is a node group that
//! the machine's node is in; `default` is all nodes, without a limit of its own unless one is configured.
//!
//! It is served on a port of its own, for machines that reach it are not the API server. Every replica answers.

pub mod auth;
pub mod machine;
pub mod protocol;
pub mod reboot_gate;
pub mod single_flight;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client as KubeClient};
use nodeward_api::node_drain::{BlockedBy, Consent};
use nodeward_api::reason::LockReason;
use nodeward_api::{DrainLedger, NodeDrain, drain_ledger};
use nodeward_core::consent::Consents;
use nodeward_core::drain_request::{DrainRequest, JoinOutcome, has_requester, is_fulfilled_by};
use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::{Facts, Ledger};
use nodeward_runtime::events::node_reference;
use nodeward_runtime::serve::{BindError, HttpServer, Limits};
use nodeward_runtime::tls::TlsDirectory;
use nodeward_runtime::{ApiError, EventSink, EventSpec, OperatorContext, Pause, PauseState};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::drain_request::{release_drain, request_drain};
use crate::execute::fresh::{self, Scales};
use crate::explain::{self, Explanation};
use crate::node_group::{self, ClientGroup, client_group};
use crate::observe::{ClusterCache, project_node};
use crate::policy::FleetLock as FleetLockPolicy;
use crate::settings::Settings;
use crate::snapshot::{LedgerFacts, NodeFacts};

use self::auth::{BearerToken, Denied};
use self::machine::{Machines, Match};
use self::protocol::{Client, Kind, MAX_BYTES, Problem};
use self::reboot_gate::RebootGate;
use self::single_flight::SingleFlight;

/// Nodes whose pods are read at once: a node has hundreds of them at most.
const READS: usize = 4;

/// What drains asked for here are for.
const PURPOSE: &str = "reboot (FleetLock)";

/// Answers FleetLock clients.
pub struct FleetLock {
    cache: Arc<ClusterCache>,
    client: KubeClient,
    settings: nodeward_runtime::ConfigHandle<Settings>,
    machines: Machines,
    token: Option<BearerToken>,
    dry_run: bool,
    events: EventSink,
    pause: Pause,
    reads: Semaphore,
    explanations: SingleFlight,
    answers: Family<[(&'static str, &'static str); 2], Counter>,
}

/// Serves FleetLock where the configuration of the start says so; answers with the address. Another address, certificate
/// directory or token file takes a restart; their content is read anew when it changes.
///
/// # Errors
/// When the address is taken.
pub async fn serve(
    context: &OperatorContext<Settings>,
    cache: &Arc<ClusterCache>,
) -> Result<Option<SocketAddr>, BindError> {
    let policy = Arc::clone(&context.config.current().policy);
    let Some(policy) = &policy.fleet_lock else {
        return Ok(None);
    };
    let server = HttpServer::bind("fleetlock", policy.bind).await?;
    let address = server.address();
    let tls = policy.tls.as_deref().map(|directory| {
        let directory = TlsDirectory::open("fleetlock", directory, policy.client_ca.as_deref(), &context.metrics);
        let tls = directory.tls();
        context
            .supervisor
            .spawn("fleetlock certificate", directory.follow(context.shutdown.clone()));
        tls
    });
    warn_if_open(policy);
    let router = FleetLock::new(context, cache, policy).router();
    let limits = Limits {
        body: MAX_BYTES,
        ..Limits::default()
    };
    context
        .supervisor
        .spawn("fleetlock", server.serve(router, tls, limits, context.shutdown.clone()));
    Ok(Some(address))
}

fn warn_if_open(policy: &FleetLockPolicy) {
    if policy.client_ca.is_none() && policy.bearer_token_file.is_none() {
        tracing::warn!(
            "FleetLock is served without authentication: whoever reaches {} can have nodes drained and uncordoned",
            policy.bind
        );
    }
}

impl FleetLock {
    fn new(context: &OperatorContext<Settings>, cache: &Arc<ClusterCache>, policy: &FleetLockPolicy) -> Arc<Self> {
        Arc::new(Self {
            cache: Arc::clone(cache),
            client: context.clients.requests.clone(),
            settings: context.config.clone(),
            machines: Machines::default(),
            token: policy.bearer_token_file.as_deref().map(BearerToken::in_file),
            dry_run: context.args.dry_run,
            events: context.events.clone(),
            pause: context.pause.clone(),
            reads: Semaphore::new(READS),
            explanations: SingleFlight::default(),
            answers: context.metrics.register(
                "fleetlock_answers",
                "Answers to FleetLock clients, by request (pre-reboot, steady-state, plan) and answer (ok or the error's kind)",
            ),
        })
    }

    fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/v1/pre-reboot", post(pre_reboot).fallback(method_not_allowed))
            .route("/v1/steady-state", post(steady_state).fallback(method_not_allowed))
            .route("/v1/plan", get(plan).fallback(method_not_allowed))
            .fallback(not_found)
            .layer(DefaultBodyLimit::max(MAX_BYTES))
            .with_state(Arc::clone(self))
    }

    async fn let_in(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(token) = &self.token else {
            return Ok(());
        };
        token.check(headers).await.map_err(|denied| match denied {
            Denied::Token => Problem::new(Kind::Unauthorized, denied.to_string()),
            Denied::Unusable(problem) => {
                tracing::error!("FleetLock lets nobody in: the token cannot be checked: {problem}");
                Problem::new(Kind::NotReady, "the server cannot check tokens; its log says why")
            }
        })
    }

    async fn client_of(&self, headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<Client, Problem> {
        self.let_in(headers).await?;
        let body = body.map_err(|rejection| {
            let kind = if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                Kind::TooLarge
            } else {
                Kind::BadBody
            };
            Problem::new(kind, rejection.body_text())
        })?;
        let client = Client::parse(headers, &body)?;
        if self.cache.is_fresh() {
            Ok(client)
        } else {
            Err(Problem::new(Kind::NotReady, "the watches are not complete yet"))
        }
    }

    fn node_of(&self, client: &Client) -> Result<Arc<NodeFacts>, Problem> {
        match self.machines.find(&client.id, &self.cache.nodes()) {
            Match::Node(node) => Ok(node),
            Match::Unknown => {
                let known = "no node has this id: its name, its machine-id, or the application-specific form of that";
                Err(Problem::new(Kind::UnknownNode, known))
            }
            Match::Several => Err(Problem::new(Kind::AmbiguousId, "several nodes have this id")),
        }
    }

    /// Whether the client's group is a node group that its node is in.
    fn check_group(&self, client: &Client, node: &NodeFacts) -> Result<(), Problem> {
        let groups = &self.settings.current().policy.node_groups;
        match client_group(groups, &client.group, node) {
            ClientGroup::Member => Ok(()),
            ClientGroup::Unknown => {
                let known = node_group::names(groups);
                let text = format!(
                    "no node group has this name; there are default, {known} (nodeGroups in the configuration)"
                );
                Err(Problem::new(Kind::UnknownGroup, text))
            }
            ClientGroup::NotMember => {
                let text = format!("node {} is not in node group {}", node.name, client.group);
                Err(Problem::new(Kind::NodeNotInGroup, text))
            }
        }
    }

    /// Whether requests are carried out at all, if this is known of a pause.
    fn may_act(&self, pause: PauseState) -> Result<(), Problem> {
        if self.dry_run || self.settings.current().policy.audits {
            let text = "this process only audits (--dry-run, or mode: audit): it drains nothing and releases nothing";
            return Err(Problem::new(Kind::NotReady, text));
        }
        match pause {
            PauseState::Running => Ok(()),
            PauseState::Paused(paused) => Err(Problem::new(
                Kind::Paused,
                format!("drain-lock is paused and drains nothing: {}", paused.reason),
            )),
            PauseState::Unknown(why) => Err(Problem::new(Kind::NotReady, why)),
        }
    }

    /// Asks for the drain of the client's node; 200 once it is drained.
    async fn pre_reboot(&self, client: &Client) -> Result<(), Problem> {
        let node = self.node_of(client)?;
        self.check_group(client, &node)?;
        self.may_act(self.pause.state())?;
        let policy = Arc::clone(&self.settings.current().policy);
        // Unlike what is served, this is not that of the start: consent that was taken back counts at once.
        let consents = policy.fleet_lock.as_ref().map(|fleet_lock| fleet_lock.consents);
        let request = DrainRequest {
            consents: consents.unwrap_or_default(),
            purpose: Some(PURPOSE.to_owned()),
            fallback: Some(policy.fallback),
            ..DrainRequest::new(node.name.clone(), Some(node.uid.clone()), client.requester(&node.name))
        };
        let seen = self.as_watched(&node);
        let is_asked_for = self
            .cache
            .drain(node.name.as_str())
            .is_some_and(|drain| is_fulfilled_by(&request, &drain));
        if let (Err(waits), true) = (&seen, is_asked_for) {
            return Err(waits.clone());
        }
        // From here on by the server's own word: that the drain has this requester, so that it does not end while the
        // machine is away, and then that it is drained.
        let joined = request_drain(&self.client, &request, Timestamp::now()).await;
        match joined.map_err(unavailable)? {
            JoinOutcome::Known => {}
            JoinOutcome::Created | JoinOutcome::Added | JoinOutcome::Noted => {
                self.announce_consents(&node, request.consents);
            }
            JoinOutcome::Conflicting(_) => {
                let ending = format!("an earlier drain of node {} has to end first", node.name);
                return Err(Problem::new(Kind::Ending, ending));
            }
            JoinOutcome::Preview => {
                let preview = format!("NodeDrain {} is a preview (dryRun); delete it first", node.name);
                return Err(Problem::new(Kind::Ending, preview));
            }
        }
        seen?;
        self.as_read(&node).await?;
        // It may have been paused meanwhile, and the watch of that may be cut off: then no node is sent down.
        self.may_act(self.pause.confirm().await)
    }

    /// Tells what is consented to in the machine's name, which has asked for nothing of the kind.
    fn announce_consents(&self, node: &NodeFacts, consents: Consents) {
        let fields = [
            (
                "emptyDirData",
                consents.empty_dir_data,
                "data of emptyDir volumes goes with their pods",
            ),
            (
                "unmanagedPods",
                consents.unmanaged_pods,
                "pods are evicted that no controller makes again",
            ),
        ];
        for (field, _, what) in fields.iter().filter(|(_, consent, _)| *consent == Consent::Evict) {
            let reason = LockReason::ConsentGiven;
            self.events.emit(EventSpec {
                regarding: node_reference(node.name.as_str(), node.uid.as_str()),
                related: None,
                severity: reason.severity(),
                reason: reason.as_str(),
                action: "Drain",
                note: format!("The node {}: {what} (fleetLock.{field}: Evict).", reason.explanation()),
            });
        }
    }

    /// Whether the machine may reboot, by the watches.
    fn as_watched(&self, node: &NodeFacts) -> Result<(), Problem> {
        let ledger = self.cache.ledger();
        if let Some(why) = ledger.as_ref().and_then(|facts| facts.unreadable.as_ref()) {
            return Err(unreadable(why));
        }
        let ledger = LedgerFacts::content(ledger.as_deref());
        let facts = self.cache.facts_of_claims(&ledger, Timestamp::now());
        let waits = gate(node, &ledger, &facts).may_reboot();
        waits.map_err(|waits| self.naming_what_no_turn_ends(node, waits))
    }

    /// The same, but where the drain waits for a maintenance window, or pods are kept until somebody consents to their eviction,
    /// that is said: no turn ends it. It changes the words alone, so the NodeDrain's status is good enough.
    fn naming_what_no_turn_ends(&self, node: &NodeFacts, waits: Problem) -> Problem {
        let drain = self.cache.drain(node.name.as_str());
        let blocked = drain.iter().filter_map(|drain| drain.status.as_ref());
        let mut blocked = blocked.flat_map(|status| &status.blocked_by);
        let no_turn_ends =
            |blocked: &&BlockedBy| blocked.reason.lacks_consent() || blocked.reason == LockReason::WaitsForWindow;
        match blocked.find(no_turn_ends) {
            Some(window) if waits.kind == Kind::Queued && !window.reason.lacks_consent() => {
                let text = format!("the drain of node {} {}", node.name, window.message);
                Problem::new(Kind::Queued, text)
            }
            Some(kept) if waits.kind == Kind::Queued => {
                let (node, remedy) = (&node.name, kept.reason.remedy());
                let text = format!(
                    "the drain of node {node} waits for a person: {}; {remedy}",
                    kept.message
                );
                Problem::new(Kind::Queued, text)
            }
            _ => waits,
        }
    }

    /// Whether the machine may reboot, by quorum reads of the ledger, the node, its pods, and the budgets of those that stay.
    async fn as_read(&self, node: &NodeFacts) -> Result<(), Problem> {
        let ledgers: Api<DrainLedger> = Api::all(self.client.clone());
        let nodes: Api<Node> = Api::all(self.client.clone());
        let ledger = ledgers.get_opt(drain_ledger::NAME).await.map_err(unavailable)?;
        let ledger = match ledger {
            Some(ledger) => Ledger::try_from(&ledger.spec).map_err(|why| unreadable(&why))?,
            None => Ledger::default(),
        };
        let present = nodes.get_opt(node.name.as_str()).await.map_err(unavailable)?;
        let present = present.and_then(|node| project_node(&node));
        let Some(present) = present.filter(|present| present.uid == node.uid) else {
            return Err(Problem::new(Kind::UnknownNode, "the node has just been deleted"));
        };
        let facts = Facts::new();
        let gate = gate(&present, &ledger, &facts);
        gate.may_reboot()?;
        // The pods come last: what was bound before its cordon was read is seen, too.
        let residents = {
            let _turn = self.reads.acquire().await;
            fresh::residents(&self.client, &self.cache, &node.name).await
        };
        gate.may_reboot_over(&residents.map_err(unavailable)?)?;
        let keys: BTreeSet<BudgetKey> = ledger
            .claim(node.uid.as_str())
            .map(|claim| fresh::budgets_of_retained(claim).collect())
            .unwrap_or_default();
        let mut facts = Facts::new();
        for (key, budget) in fresh::budgets(&self.client, &self.cache, Some(&ledger), &keys, &keys, Scales::Keep).await
        {
            facts.extend(budget.map_err(unavailable)?.map(|budget| (key, budget.facts)));
        }
        gate.has_kept_disruptions(&facts)
    }

    /// Takes the client's wish back. A machine that holds nothing has nothing to take back, and is told so with 200, whatever else
    /// there is to say: it asks at each boot, before its node has joined, too, and does not go on without that answer.
    async fn steady_state(&self, client: &Client) -> Result<(), Problem> {
        let node = match self.node_of(client) {
            Ok(node) => node,
            Err(problem) if problem.kind == Kind::UnknownNode => {
                tracing::debug!(id = client.id, "a machine without a node is up, and holds nothing");
                return Ok(());
            }
            Err(problem) => return Err(problem),
        };
        let requester = client.requester(&node.name);
        // By the server's own word: a watch may not have shown a drain yet that another replica has just made.
        let drains: Api<NodeDrain> = Api::all(self.client.clone());
        let drain = drains.get_opt(node.name.as_str()).await.map_err(unavailable)?;
        if !drain.is_some_and(|drain| has_requester(&drain, &requester)) {
            return Ok(());
        }
        self.may_act(self.pause.state())?;
        let left = release_drain(&self.client, node.name.as_str(), &requester).await;
        if left.map_err(unavailable)? {
            tracing::info!(node = %node.name, requester, "a machine is back and has released its drain");
        }
        Ok(())
    }

    fn answered<T>(&self, request: &'static str, answer: &Result<T, Problem>) {
        let answer = answer.as_ref().map_or_else(|problem| problem.kind.as_str(), |_| "ok");
        let labels = [("request", request), ("answer", answer)];
        self.answers.get_or_create(&labels).inc();
    }
}

/// What holds, and who waits, nobody here knows.
fn unreadable(why: &str) -> Problem {
    let text = format!("the ledger cannot be decoded, and no node is told to go down until it can: {why}");
    Problem::new(Kind::NotReady, text)
}

fn gate<'a>(node: &'a NodeFacts, ledger: &'a Ledger, facts: &'a Facts) -> RebootGate<'a> {
    RebootGate {
        node: node.name.as_str(),
        node_uid: node.uid.as_str(),
        cordoned: node.is_cordoned(),
        boot_id: &node.boot_id,
        ledger,
        facts,
    }
}

fn unavailable(error: impl Into<ApiError>) -> Problem {
    let error: ApiError = error.into();
    tracing::warn!(%error, "a FleetLock request could not be carried out");
    Problem::new(Kind::ApiUnavailable, error.to_string())
}

async fn pre_reboot(
    State(lock): State<Arc<FleetLock>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    let answer = async { lock.pre_reboot(&lock.client_of(&headers, body).await?).await }.await;
    lock.answered("pre-reboot", &answer);
    answer.map(|()| StatusCode::OK)
}

async fn steady_state(
    State(lock): State<Arc<FleetLock>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    let answer = async { lock.steady_state(&lock.client_of(&headers, body).await?).await }.await;
    lock.answered("steady-state", &answer);
    answer.map(|()| StatusCode::OK)
}

#[derive(Deserialize)]
struct PlanOf {
    #[serde(default)]
    node: String,
}

async fn plan(
    State(lock): State<Arc<FleetLock>>,
    headers: HeaderMap,
    query: Result<Query<PlanOf>, QueryRejection>,
) -> Result<Json<Explanation>, Problem> {
    let answer = async {
        lock.let_in(&headers).await?;
        let node = query
            .ok()
            .map(|Query(asked)| asked.node)
            .filter(|node| !node.is_empty());
        let node = node.ok_or_else(|| Problem::new(Kind::BadId, "say which node: /v1/plan?node=NAME"))?;
        let (cache, policy) = (Arc::clone(&lock.cache), Arc::clone(&lock.settings.current().policy));
        let explained = lock
            .explanations
            .run(move || explain::explain(&cache, &policy, &node, Timestamp::now()));
        explained.await?.map_err(|unexplained| match unexplained {
            explain::Unexplained::NotReady => Problem::new(Kind::NotReady, "the watches are not complete yet"),
            explain::Unexplained::NoSuchNode => Problem::new(Kind::UnknownNode, "there is no node of this name"),
        })
    }
    .await;
    lock.answered("plan", &answer);
    answer.map(Json)
}

async fn method_not_allowed() -> Problem {
    Problem::new(Kind::MethodNotAllowed, "use POST, and GET for /v1/plan")
}

async fn not_found() -> Problem {
    Problem::new(
        Kind::NotFound,
        "there are /v1/pre-reboot, /v1/steady-state and /v1/plan",
    )
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, is_unauthorized) = (self.kind.status(), self.kind == Kind::Unauthorized);
        let mut response = (status, Json(self)).into_response();
        if is_unauthorized {
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, axum::http::HeaderValue::from_static("Bearer"));
        }
        response
    }
}
