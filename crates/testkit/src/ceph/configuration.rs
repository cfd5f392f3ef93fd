//! What the daemons of a Ceph cluster are started with.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;

use super::packages::{CephRelease, Programs};
use crate::process::Process;

/// The monitors, and how the administrator connects.
pub(super) struct Mons {
    pub(super) processes: Vec<Process>,
    pub(super) admin: rados::Options,
}

/// Prepares the monitors `a`, `b` and so on, one for each port, and writes the configuration of all daemons.
pub(super) fn mons(programs: &Programs, directory: &Path, ports: &[u16]) -> Result<Mons> {
    let fsid = random_uuid();
    let names: Vec<String> = ('a'..='z').take(ports.len()).map(String::from).collect();
    let addresses: Vec<String> = ports.iter().map(|port| format!("[v2:127.0.0.1:{port}]")).collect();
    fs::write(
        directory.join("ceph.conf"),
        configuration(programs, directory, &fsid, &addresses.join(",")),
    )?;
    let (mon_key, admin_key) = (random_key(), random_key());
    let keyring = directory.join("mon.keyring");
    fs::write(
        &keyring,
        format!(
            "[mon.]\nkey = {mon_key}\ncaps mon = \"allow *\"\n[client.admin]\nkey = {admin_key}\n\
             caps mon = \"allow *\"\ncaps osd = \"allow *\"\ncaps mgr = \"allow *\"\n"
        ),
    )?;
    let monmap = directory.join("monmap");
    let (monmap, keyring) = (monmap.display().to_string(), keyring.display().to_string());
    let mut args = vec!["--create", "--fsid", &fsid];
    for (name, address) in names.iter().zip(&addresses) {
        args.extend(["--addv", name, address]);
    }
    if programs.release() == CephRelease::Newest {
        // By itself it takes keys only that the librados of the tests does not know.
        args.extend([
            "--auth-service-cipher",
            "aes",
            "--auth-allowed-ciphers",
            "aes,aes256k",
            "--auth-preferred-cipher",
            "aes",
        ]);
    }
    args.push(&monmap);
    programs.run("monmaptool", &args)?;
    let mut processes = Vec::new();
    for name in &names {
        let data = data(directory, "mon", name);
        fs::create_dir_all(&data)?;
        let (conf, data) = (conf(directory), data.display().to_string());
        let make = [
            "-c",
            &conf,
            "--mkfs",
            "-i",
            name,
            "--monmap",
            &monmap,
            "--keyring",
            &keyring,
            "--mon-data",
            &data,
        ];
        programs.run("ceph-mon", &make)?;
        processes.push(daemon(programs, directory, "mon", name));
    }
    let admin = rados::Options {
        mon_host: addresses.join(","),
        user: "client.admin".to_owned(),
        key: admin_key,
        encrypted: false,
        // No test waits for it: a monitor that is busy writes for many seconds.
        timeout: Some(Duration::from_mins(1)),
    };
    Ok(Mons { processes, admin })
}

/// Prepares the directory of an OSD.
pub(super) fn make_osd(programs: &Programs, directory: &Path, id: &str, uuid: &str) -> Result<()> {
    let (conf, data) = (conf(directory), data(directory, "osd", id).display().to_string());
    programs.run(
        "ceph-osd",
        &["-c", &conf, "--mkfs", "-i", id, "--osd-uuid", uuid, "--osd-data", &data],
    )
}

/// A daemon in the foreground, with its own directory.
pub(super) fn daemon(programs: &Programs, directory: &Path, kind: &str, id: &str) -> Process {
    let data = data(directory, kind, id);
    let log = directory.join(format!("{kind}.{id}.out"));
    programs
        .process(&format!("{kind}.{id}"), &format!("ceph-{kind}"), log)
        .args([
            "-c",
            &conf(directory),
            "-i",
            id,
            "-f",
            &format!("--{kind}-data"),
            &data.display().to_string(),
        ])
}

/// The directory of a daemon.
pub(super) fn data(directory: &Path, kind: &str, id: &str) -> PathBuf {
    directory.join(format!("{kind}.{id}"))
}

fn conf(directory: &Path) -> String {
    directory.join("ceph.conf").display().to_string()
}

/// Writes the key with which a daemon introduces itself.
pub(super) fn write_keyring(data: &Path, entity: &str, key: &str) -> Result<()> {
    fs::create_dir_all(data)?;
    Ok(fs::write(data.join("keyring"), format!("[{entity}]\nkey = {key}\n"))?)
}

fn configuration(programs: &Programs, directory: &Path, fsid: &str, mon_host: &str) -> String {
    let libraries = programs.libraries();
    let at = |path: &Path| path.display().to_string();
    let settings = [
        ("fsid", fsid.to_owned()),
        ("mon_host", mon_host.to_owned()),
        ("public_network", "127.0.0.0/8".to_owned()),
        ("run_dir", at(directory)),
        ("log_file", at(&directory.join("$name.log"))),
        ("admin_socket", at(&directory.join("$name.asok"))),
        ("mgr_module_path", at(&programs.path("usr/share/ceph/mgr"))),
        ("plugin_dir", at(&libraries.join("ceph"))),
        ("erasure_code_dir", at(&libraries.join("ceph/erasure-code"))),
        ("osd_class_dir", at(&libraries.join("rados-classes"))),
        // Where an OSD is we say ourselves.
        ("osd_crush_update_on_start", "false".to_owned()),
        ("osd_objectstore", "memstore".to_owned()),
        ("memstore_device_bytes", "67108864".to_owned()),
        // With the quick end that is the default, each stop would be a lost disk.
        ("osd_fast_shutdown", "false".to_owned()),
        // A monitor ends by itself where its disk is nearly full.
        ("mon_data_avail_crit", "1".to_owned()),
        ("mon_data_avail_warn", "1".to_owned()),
        ("auth_allow_insecure_global_id_reclaim", "false".to_owned()),
        ("mon_allow_pool_delete", "true".to_owned()),
        ("mon_allow_pool_size_one", "true".to_owned()),
        ("ms_bind_msgr1", "false".to_owned()),
        // Many daemons on few cores.
        ("ms_async_op_threads", "1".to_owned()),
        ("osd_op_num_shards", "1".to_owned()),
        ("osd_op_num_threads_per_shard", "1".to_owned()),
    ];
    let of_newest = [
        ("mon_auth_allow_insecure_key", "true".to_owned()),
        // Else the manager makes a pool of its own, whose copies lie in different hosts.
        ("mgr_pool", "false".to_owned()),
    ];
    settings
        .iter()
        .chain(of_newest.iter().filter(|_| programs.release() == CephRelease::Newest))
        .fold("[global]\n".to_owned(), |mut text, (name, value)| {
            let _ = writeln!(text, "{name} = {value}");
            text
        })
}

/// A UUID in its usual form.
pub(super) fn random_uuid() -> String {
    let hex = format!("{:032x}", fastrand::u128(..));
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// A key as `ceph-authtool --gen-key` makes it: type 1 (AES), the time of its making, 16 bytes with their length; in base64.
fn random_key() -> String {
    let mut key = [0_u8; 28];
    key[0] = 1;
    key[10] = 16;
    key[12..].copy_from_slice(&fastrand::u128(..).to_le_bytes());
    BASE64.encode(key)
}
