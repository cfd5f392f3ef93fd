//! Against a real Ceph, without OSDs: all of this is between librados, the monitors and the manager.

use std::env;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nodeward_testkit::ceph::{Ceph, CephOptions, CephRelease, Programs};
use nodeward_testkit::wait;
use rados::{Answer, Cluster, ClusterStat, Error, Librados, Options};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use tokio::task::spawn_blocking;

/// How long a monitor may take to answer, where it is to be too long.
const TIMEOUT: Duration = Duration::from_secs(6);

/// How long what must come may take, on a loaded machine.
const DEADLINE: Duration = Duration::from_mins(3);

/// One cluster for all tests, one after the other: some take parts of it away.
async fn ceph() -> Result<MutexGuard<'static, Ceph>> {
    static CEPH: OnceCell<Mutex<Ceph>> = OnceCell::const_new();
    let options = CephOptions {
        hosts: 0,
        ..CephOptions::default()
    };
    let ceph = CEPH.get_or_try_init(|| async { Ceph::start(options).await.map(Mutex::new) });
    Ok(ceph.await?.lock().await)
}

fn options(ceph: &Ceph) -> Options {
    Options {
        timeout: Some(TIMEOUT),
        ..ceph.admin().clone()
    }
}

async fn connect(options: Options) -> Result<Arc<Cluster>, Error> {
    let connected = spawn_blocking(|| Cluster::connect(Librados::load()?, options).map(Arc::new));
    connected
        .await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

async fn status(cluster: &Arc<Cluster>) -> Result<Answer, Error> {
    let cluster = Arc::clone(cluster);
    let asked = spawn_blocking(move || cluster.mon_command(&json!({"prefix": "status", "format": "json"})));
    asked
        .await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

async fn answers_again(cluster: &Arc<Cluster>) -> Result<()> {
    let answer = wait::until("the monitor to answer", DEADLINE, || async {
        Ok(status(cluster).await?)
    })
    .await?;
    let status: Value = answer.json()?;
    ensure!(status["fsid"].is_string(), "{status}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_the_command_and_the_reason() -> Result<()> {
    let ceph = ceph().await?;
    let cluster = connect(ceph.admin().clone()).await?;
    let command = json!({"prefix": "osd set-group", "flags": "noout", "who": ["no-such-host"]});
    let answer = spawn_blocking(move || cluster.mon_command(&command)).await??;
    let refused = answer.accepted().unwrap_err();
    let Error::Refused { prefix, code, why } = &refused else {
        anyhow::bail!("{refused}");
    };
    ensure!(prefix == "osd set-group" && *code == -22, "{refused}");
    ensure!(why.contains("no-such-host"), "{refused}");
    Ok(())
}

#[rstest]
#[case::wrong_key("client.admin", Some("AQDnW0pmAAAAABAAHsGqYqVhPxVtzgTQyKHw1g=="))]
#[case::unknown_user("client.nobody", None)]
#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_refused(#[case] user: &str, #[case] key: Option<&str>) -> Result<()> {
    let ceph = ceph().await?;
    let mut wrong = ceph.admin().clone();
    user.clone_into(&mut wrong.user);
    wrong.key = key.map_or(wrong.key, str::to_owned);
    let refused = connect(wrong).await.unwrap_err();
    ensure!(
        matches!(&refused, Error::Authentication { user: told, .. } if told == user),
        "{refused}"
    );
    Ok(())
}

#[rstest]
#[case::key("AQD not base64")]
#[case::zero_byte("AQD\0")]
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_key_is_refused(#[case] key: &str) -> Result<()> {
    let ceph = ceph().await?;
    let mut broken = options(&ceph);
    key.clone_into(&mut broken.key);
    let refused = connect(broken).await.unwrap_err();
    ensure!(matches!(refused, Error::Option { .. }), "{refused}");
    ensure!(!refused.to_string().contains("AQD"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_without_a_monitor_costs_the_timeout() -> Result<()> {
    let ceph = ceph().await?;
    let mut elsewhere = options(&ceph);
    elsewhere.mon_host = "[v2:127.0.0.1:1]".to_owned();
    let unreachable = connect(elsewhere).await.unwrap_err();
    ensure!(matches!(unreachable, Error::Unreachable { .. }), "{unreachable}");
    ensure!(unreachable.to_string().contains("127.0.0.1:1"), "{unreachable}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_outlives_its_monitors_restart() -> Result<()> {
    let ceph = ceph().await?;
    let cluster = connect(options(&ceph)).await?;
    ceph.mon(0).kill();
    let unreachable = status(&cluster).await.unwrap_err();
    ensure!(matches!(unreachable, Error::Unreachable { .. }), "{unreachable}");
    ceph.mon(0).start()?;
    answers_again(&cluster).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_monitor_costs_the_timeout() -> Result<()> {
    let ceph = ceph().await?;
    let cluster = connect(options(&ceph)).await?;
    ceph.mon(0).pause()?;
    let unreachable = status(&cluster).await.unwrap_err();
    ceph.mon(0).resume()?;
    ensure!(matches!(unreachable, Error::Unreachable { .. }), "{unreachable}");
    answers_again(&cluster).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_statistics_call_costs_the_timeout() -> Result<()> {
    let ceph = ceph().await?;
    let cluster = connect(options(&ceph)).await?;
    let stat = || {
        let cluster = Arc::clone(&cluster);
        async move { spawn_blocking(move || cluster.cluster_stat()).await }
    };
    ensure!(stat().await?? == ClusterStat::default(), "there are no OSDs");
    ceph.mon(0).pause()?;
    let unreachable = stat().await?;
    ceph.mon(0).resume()?;
    ensure!(matches!(unreachable, Err(Error::Unreachable { .. })), "{unreachable:?}");
    answers_again(&cluster).await
}

/// Unlike a monitor that has ended, a network that drops all there is does not break a connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_route_costs_the_timeout() -> Result<()> {
    let with_routes = CephOptions {
        hosts: 0,
        has_routes: true,
        ..CephOptions::default()
    };
    let ceph = Ceph::start(with_routes).await?;
    let cluster = connect(options(&ceph)).await?;
    status(&cluster).await?.accepted()?;
    ceph.route(0).interrupt();
    let on_old_connection = status(&cluster).await;
    let on_new_connection = connect(options(&ceph)).await;
    ceph.route(0).restore();
    for unreachable in [on_old_connection.unwrap_err(), on_new_connection.unwrap_err()] {
        ensure!(matches!(unreachable, Error::Unreachable { .. }), "{unreachable}");
    }
    answers_again(&cluster).await
}

/// As often as it takes to meet the moments in between: a call that ended by itself would leave librados with pointers into a
/// stack that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_to_a_paused_manager_ends_once_it_goes_on() -> Result<()> {
    let ceph = ceph().await?;
    let monitors = connect(ceph.admin().clone()).await?;
    let manager = connect(Options {
        timeout: None,
        ..options(&ceph)
    });
    let manager = manager.await?;
    for _ in 0..20 {
        ceph.mgr().pause()?;
        let cluster = Arc::clone(&manager);
        let mut asked = spawn_blocking(move || {
            cluster.mgr_command(&json!({"prefix": "osd ok-to-stop", "ids": ["0"], "format": "json"}))
        });
        // Meanwhile the monitors answer, each within its own timeout.
        status(&monitors).await?.accepted()?;
        let early = tokio::time::timeout(Duration::from_millis(50), &mut asked).await;
        ceph.mgr().resume()?;
        ensure!(early.is_err(), "a paused manager has answered: {early:?}");
        let answer = tokio::time::timeout(DEADLINE, asked)
            .await
            .context("the manager goes on, the call does not")???;
        let answer: Value = answer.json_anyway()?;
        ensure!(answer["ok_to_stop"].is_boolean(), "{answer}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_the_cluster_log_arrive() -> Result<()> {
    let ceph = ceph().await?;
    let options = ceph.admin().clone();
    let said = spawn_blocking(move || -> Result<()> {
        let mut cluster = Cluster::connect(Librados::load()?, options)?;
        let (sender, lines) = mpsc::sync_channel(64);
        cluster.follow_log("info", move |line| drop(sender.try_send(line)))?;
        cluster
            .mon_command(&json!({"prefix": "log", "logtext": ["osd.7", "is", "slow"]}))?
            .accepted()?;
        loop {
            let line = lines.recv_timeout(DEADLINE)?;
            if line.channel == "cluster" && line.message.contains("osd.7 is slow") {
                return Ok(());
            }
        }
    });
    said.await?
}

/// Tells the test below, started anew, whom to connect to.
const CONNECT_TO: &str = "NODEWARD_TEST_CONNECT_TO";

/// Today's Rook makes such keys. This system's librados does not know them: the test starts itself anew with the newest one.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_type_aes256k_connects() -> Result<()> {
    if let Ok(told) = env::var(CONNECT_TO) {
        let told: Value = serde_json::from_str(&told)?;
        let text = |field: &str| told[field].as_str().unwrap_or_default().to_owned();
        let options = Options {
            mon_host: text("monHost"),
            user: text("user"),
            key: text("key"),
            encrypted: false,
            timeout: Some(TIMEOUT),
        };
        return answers_again(&connect(options).await?).await;
    }
    let ceph = Ceph::start(CephOptions {
        hosts: 0,
        release: Some(CephRelease::Newest),
        ..CephOptions::default()
    })
    .await?;
    let user = "client.today";
    let created = ceph
        .command(json!({
            "prefix": "auth get-or-create", "entity": user, "caps": ["mon", "allow r"], "key_type": "aes256k",
        }))
        .await?;
    let key = created[0]["key"].as_str().context("no key")?.to_owned();
    let options = Options {
        user: user.to_owned(),
        key,
        ..options(&ceph)
    };
    let Err(error) = connect(options.clone()).await else {
        anyhow::bail!("this system's librados knows the type: the test need not start itself anew");
    };
    ensure!(matches!(error, Error::KeyTypeUnknown { .. }), "{error}");
    let told = json!({"monHost": options.mon_host, "user": options.user, "key": options.key});
    let connected = spawn_blocking(move || {
        let mut anew = Programs::of(CephRelease::Newest)?.loading(&env::current_exe()?)?;
        anew.args(["--exact", "a_key_of_type_aes256k_connects", "--nocapture"]);
        anyhow::Ok(anew.env(CONNECT_TO, told.to_string()).output()?)
    });
    let connected = connected.await??;
    let said = [connected.stdout, connected.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    ensure!(connected.status.success() && said.contains("1 passed"), "{said}");
    Ok(())
}
