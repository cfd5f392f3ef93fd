//! What real nodes ask of this machine, and what they may leave on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::binaries::stdout_of;
use crate::process::{ProcessId, Signal};

/// Directories of nodes, and their cgroups, begin with this.
pub const PREFIX: &str = "nodeward-node-";

/// In a node's directory: the process that the node belongs to, and the node's first.
pub const OWNER: &str = "owner";
pub const FIRST: &str = "first";

/// Where the kernel's cgroups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// How long the processes of a node may take to end once its first is killed.
const ENDED_WITHIN: Duration = Duration::from_secs(30);

/// Makes sure that this machine can have real nodes.
///
/// # Errors
/// What is missing.
pub fn check() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "they need root, for namespaces and cgroups"
    );
    for program in ["apt-get", "unshare", "nsenter", "mount", "ip", "tar", "cc"] {
        let found = Command::new(program).arg("--version").output();
        ensure!(
            !matches!(&found, Err(error) if error.kind() == std::io::ErrorKind::NotFound),
            "they need the program {program}"
        );
    }
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("they need {path}"));
    let controllers = fs::read_to_string(Path::new(CGROUPS).join("cgroup.controllers")).unwrap_or_default();
    cgroups(&read("/proc/self/mounts")?, &controllers)?;
    let filesystems = read("/proc/filesystems")?;
    ensure!(
        filesystems.split_whitespace().any(|word| word == "overlay"),
        "they need a kernel with overlayfs"
    );
    let mut veth = Command::new("unshare");
    veth.args(["--net", "ip", "link", "add", "probe", "type", "veth"]);
    stdout_of(&mut veth).context("they need network namespaces and veth")?;
    Ok(())
}

/// Which cgroups there are: of version 1 a hierarchy for each controller, or of version 2 a single one.
fn cgroups(mounts: &str, controllers_of_v2: &str) -> Result<()> {
    let needed = ["cpu", "cpuset", "memory", "pids"];
    let mounts: Vec<Vec<&str>> = mounts.lines().map(|line| line.split_whitespace().collect()).collect();
    let is_v2 = mounts
        .iter()
        .any(|mount| mount.get(1..3) == Some(&[CGROUPS, "cgroup2"]));
    let v1 = mounts.iter().filter(|mount| mount.get(2) == Some(&"cgroup"));
    let v1 = v1
        .filter_map(|mount| mount.get(3))
        .flat_map(|options| options.split(','));
    let there: Vec<&str> = if is_v2 {
        controllers_of_v2.split_whitespace().collect()
    } else {
        v1.collect()
    };
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|controller| !there.contains(controller))
        .collect();
    ensure!(
        missing.is_empty(),
        "they need the cgroup controllers {}, and {CGROUPS} (version {}) lacks {}",
        needed.join(", "),
        if is_v2 { 2 } else { 1 },
        missing.join(", ")
    );
    Ok(())
}

/// The cgroups of this name.
pub fn cgroups_of(name: &str) -> Vec<PathBuf> {
    let hierarchies = fs::read_dir(CGROUPS).into_iter().flatten().flatten();
    let hierarchies = hierarchies.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let tops = hierarchies.map(|hierarchy| hierarchy.path().join(name));
    tops.chain([Path::new(CGROUPS).join(name)])
        .filter(|top| top.is_dir())
        .collect()
}

/// Removes the cgroups of a node whose processes end now.
///
/// # Errors
/// When a process stays in one.
pub fn remove_cgroups(name: &str) -> Result<()> {
    let began = Instant::now();
    loop {
        let left = cgroups_of(name);
        if left.is_empty() {
            return Ok(());
        }
        ensure!(began.elapsed() < ENDED_WITHIN, "{left:?} cannot be removed");
        for top in &left {
            remove_cgroup(top);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn remove_cgroup(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    // One that still has processes is tried again.
    let _ = fs::remove_dir(path);
}

/// Removes what is left of nodes whose owner has ended, and its reaper with it; gives their directories.
pub fn sweep() -> Vec<PathBuf> {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let nodes = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let recorded =
        |dir: &Path, file: &str| -> Option<ProcessId> { serde_json::from_slice(&fs::read(dir.join(file)).ok()?).ok() };
    let is_left = |dir: &PathBuf| recorded(dir, OWNER).is_some_and(|owner| !owner.is_alive());
    let left: Vec<PathBuf> = nodes.map(|entry| entry.path()).filter(is_left).collect();
    for dir in &left {
        if let Some(first) = recorded(dir, FIRST) {
            first.signal(Signal::KILL);
        }
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let _ = remove_cgroups(&name);
        let _ = fs::remove_dir_all(dir);
    }
    left
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::cgroups;

    const V1: &str = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
        cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
    const V2: &str = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";

    #[rstest]
    #[case::version_1(&format!("{V1}cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0"), "", None)]
    #[case::version_1_without_pids(V1, "", Some("(version 1) lacks pids"))]
    #[case::version_2(V2, "cpuset cpu io memory pids", None)]
    #[case::version_2_without_controllers(V2, "io pids", Some("(version 2) lacks cpu, cpuset, memory"))]
    #[case::none("", "", Some("(version 1) lacks cpu, cpuset, memory, pids"))]
    fn needed_controllers_are_told(#[case] mounts: &str, #[case] of_v2: &str, #[case] refusal: Option<&str>) {
        let told = cgroups(mounts, of_v2).map_err(|error| error.to_string());
        match refusal {
            None => told.unwrap(),
            Some(end) => assert!(told.as_ref().is_err_and(|told| told.ends_with(end)), "{told:?}"),
        }
    }
}
