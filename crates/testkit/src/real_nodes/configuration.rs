//! The files that a node's programs read.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::image::PAUSE;
use crate::kubernetes::Kubernetes;
use crate::{debian, ports, toolchain};

/// What a kubelet and the CNI plugins write, but for the boot id, which they read: each node has files of its own in their place.
const SYSTEM_FILES: [&str; 8] = [
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
    "net.ipv4.ip_forward",
    BOOT_ID,
];

pub const BOOT_ID: &str = "kernel.random.boot_id";

/// The programs of a node.
#[derive(Clone, Debug)]
pub struct Programs {
    pub kubelet: PathBuf,
    packages: PathBuf,
}

impl Programs {
    /// Finds them in the cache; builds the kubelet and fetches the rest where they are missing. Blocking.
    pub fn ensure(kubernetes: Kubernetes) -> Result<Self> {
        Ok(Self {
            packages: debian::ensure_unpacked("containerd", &["containerd", "runc", "containernetworking-plugins"])?,
            kubelet: toolchain::kubelet(kubernetes)?,
        })
    }

    /// A path of the packages, or of the system where that has the package.
    pub fn path(&self, path: &str) -> Result<PathBuf> {
        let candidates = [self.packages.join(path), Path::new("/").join(path)];
        match candidates.into_iter().find(|candidate| candidate.exists()) {
            Some(found) => Ok(found),
            None => bail!("containerd, runc and containernetworking-plugins have no {path}"),
        }
    }
}

/// What is particular to a node.
pub struct Settings<'a> {
    pub dir: &'a Path,
    pub lease: Duration,
    /// PEM, of who may talk to the kubelet.
    pub authority: &'a str,
}

impl Settings<'_> {
    /// Writes all files but the boot id's.
    pub fn write(&self, programs: &Programs) -> Result<()> {
        for sub in ["cgroup", "lib", "log", "sys", "cni", "manifests"] {
            fs::create_dir_all(self.dir.join(sub))?;
        }
        for file in SYSTEM_FILES {
            let path = Path::new("/proc/sys").join(file.replace('.', "/"));
            let present = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            fs::write(self.dir.join("sys").join(file), present)?;
        }
        fs::write(self.dir.join("ca.crt"), self.authority)?;
        fs::write(self.dir.join("containerd.toml"), self.containerd(programs)?)?;
        self.write_ports()
    }

    /// Writes what names ports, anew: another process may have taken them.
    pub fn write_ports(&self) -> Result<()> {
        let (port, healthz) = (ports::free()?, ports::free()?);
        fs::write(self.dir.join("kubelet.json"), self.kubelet(port, healthz).to_string())?;
        fs::write(self.dir.join("cni/pods.conflist"), network(port).to_string())?;
        Ok(())
    }

    fn kubelet(&self, port: u16, healthz_port: u16) -> Value {
        let dir = self.dir.display();
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": port,
            "healthzPort": healthz_port,
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": false},
                "x509": {"clientCAFile": format!("{dir}/ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "staticPodPath": format!("{dir}/manifests"),
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "resolvConf": "",
            "nodeLeaseDurationSeconds": self.lease.as_secs().max(4),
            "fileCheckFrequency": "1s",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": false,
            "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            // A full disk is this machine's.
            "localStorageCapacityIsolation": false,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "0%",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
                "imagefs.inodesFree": "0%",
            },
        })
    }

    fn containerd(&self, programs: &Programs) -> Result<String> {
        let dir = self.dir.display();
        let (runc, cni) = (programs.path("usr/sbin/runc")?, programs.path("usr/lib/cni")?);
        let (runc, cni) = (runc.display(), cni.display());
        let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
        Ok(format!(
            r#"version = 2
[{cri}]
sandbox_image = "{PAUSE}"
disable_apparmor = true
restrict_oom_score_adj = true
[{cri}.cni]
bin_dir = "{cni}"
conf_dir = "{dir}/cni"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = "{runc}"
"#
        ))
    }
}

/// A network of pods that only this machine reaches. Its addresses are nobody else's, as the port is.
fn network(port: u16) -> Value {
    let offset = u32::from(port) << 7;
    let [_, second, third, fourth] = offset.to_be_bytes();
    let subnet = format!("100.{}.{third}.{fourth}/25", 64 + second);
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": subnet}}],
    })
}

#[cfg(test)]
mod tests {
    use super::network;

    #[test]
    fn each_port_has_its_own_addresses() {
        let subnet = |port| network(port)["plugins"][0]["ipam"]["subnet"].to_string();
        assert_eq!(subnet(14_000), "\"100.91.88.0/25\"");
        assert_eq!(subnet(14_001), "\"100.91.88.128/25\"");
        assert_eq!(subnet(31_999), "\"100.126.127.128/25\"");
    }
}
