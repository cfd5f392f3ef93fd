//! `cargo xtask image`: builds the components' container images and runs them, without a container engine or a registry.
//!
//! The base is made here of the libraries that the binary is linked to: what the public base image holds, from this machine.
//! The binaries are those that ship, or with `--dev` those that the tests run: two cores compile the former for more than ten
//! minutes, and where the tests have just run, nothing is left to compile of the latter.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use nodeward_testkit::binaries::{self, Profile};
use nodeward_testkit::ceph::{CephRelease, Programs};
use serde_json::Value;

/// What has an image: the operators.
const COMPONENTS: &[&str] = &["drain-keeper", "drain-lock", "health-check", CEPH_PDB];

/// The one that loads librados, by its name: the image has the newest, with the C library that this wants, in place of this
/// machine's. Keys that today's Rook makes are unknown to older ones.
const CEPH_PDB: &str = "ceph-pdb";

/// What it loads.
const LIBRADOS: &str = "librados.so.2";

/// How large librados may be, with all that it is linked to.
const LIBRADOS_MIB: u64 = 32;

/// The name that the Dockerfile's `RUNTIME` argument gets here.
const BASE: &str = "localhost/nodeward-runtime";

/// The user that the image must run as: not root, and by number, so that `runAsNonRoot` can be checked.
const USER: &str = "65532:65532";

/// What to build, and how large it may be.
#[derive(clap::Args)]
pub struct Args {
    /// Only this component, and so on; else all. Crate, binary and image have one name.
    #[arg(long = "component", value_name = "NAME", value_parser = COMPONENTS.to_vec())]
    components: Vec<String>,

    /// Of the binaries that the tests run, stripped, in place of those that ship: quick, but of any size
    #[arg(long)]
    dev: bool,

    /// Fail when an image, unpacked, is larger than this; ceph-pdb's may have librados in addition
    #[arg(long, default_value_t = 28, value_name = "MIB", conflicts_with = "dev")]
    max_mib: u64,

    /// Fail, rather than skip, where images cannot be built
    #[arg(long)]
    require: bool,
}

/// Builds each component's image, runs `--version` in it, and checks its size and its user.
///
/// # Errors
/// When one cannot be built, does not run, runs as root or is too large. Where images cannot be built at all, it says why
/// and succeeds, unless `require` is set.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Err(reason) = provide_buildah() {
        ensure!(!args.require, "images cannot be built here: {reason:#}");
        println!("image: skipped: {reason:#}");
        return Ok(ExitCode::SUCCESS);
    }
    let profile = if args.dev { Profile::Dev } else { Profile::Release };
    let binaries = binaries::build(profile)?;
    let max_mib = (!args.dev).then_some(args.max_mib);
    let is_asked =
        |component: &&&str| args.components.is_empty() || args.components.iter().any(|one| one == **component);
    for component in COMPONENTS.iter().filter(is_asked) {
        build(component, &binaries.join(component), max_mib).with_context(|| format!("image {component}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds and tries one. Without a limit the binary is one of the dev profile, which is stripped first.
fn build(component: &str, binary: &Path, max_mib: Option<u64>) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("nodeward-image-").tempdir()?;
    let buildah = Buildah {
        dir: scratch.path().to_owned(),
    };
    let (libraries, librados, max_mib) = if component == CEPH_PDB {
        let (libraries, librados) = with_librados(binary)?;
        (libraries, Some(librados), max_mib.map(|limit| limit + LIBRADOS_MIB))
    } else {
        let libraries = linked_libraries(Command::new("ldd").arg(binary), Path::new("/"))?;
        (libraries, None, max_mib)
    };
    base_of(&buildah, &libraries, &scratch.path().join("rootfs"))?;

    let context = scratch.path().join("context");
    std::fs::create_dir(&context)?;
    let shipped = context.join(component);
    if max_mib.is_some() {
        std::fs::copy(binary, &shipped)?;
    } else {
        // Its symbols would be copied once for each layer.
        let mut strip = Command::new("strip");
        binaries::stdout_of(strip.arg("-o").arg(&shipped).arg(binary)).context("strip the binary")?;
    }
    let binary_size = size(&shipped)?;
    let image = format!("localhost/{component}");
    buildah.stdout(&[
        "build",
        "--isolation=chroot",
        "--pull-never",
        &format!("--build-arg=RUNTIME={BASE}"),
        "--build-arg=BINARY_FROM=prebuilt",
        &format!("--build-arg=COMPONENT={component}"),
        &format!("--file={}", binaries::workspace().join("Dockerfile").display()),
        &format!("--tag={image}"),
        path(&context)?,
    ])?;

    expect_unprivileged(&buildah, &image)?;
    let container = buildah.stdout(&["from", "--pull-never", &image])?;
    let version = buildah.stdout(&["run", "--isolation=chroot", &container, "--", "/operator", "--version"])?;
    let expected = format!("{component} {}", env!("CARGO_PKG_VERSION"));
    ensure!(version == expected, "its --version says {version:?}, not {expected:?}");
    if let Some(librados) = &librados {
        expect_loadable(&buildah, &container, librados, &libraries)?;
    }

    let archive = scratch.path().join("image.tar");
    buildah.stdout(&["push", "--quiet", &image, &format!("oci-archive:{}", archive.display())])?;
    let unpacked = libraries.values().map(|library| size(library)).sum::<Result<u64>>()? + binary_size;
    let limit = max_mib.map_or_else(|| "of the dev profile".to_owned(), |limit| format!("limit {limit} MiB"));
    println!(
        "image {component}: {version}, user {USER}, {} MiB unpacked (binary {} MiB), {} MiB to pull, {limit}",
        mib(unpacked),
        mib(binary_size),
        mib(size(&archive)?),
    );
    ensure!(
        max_mib.is_none_or(|limit| unpacked <= limit << 20),
        "it is larger than its limit"
    );
    Ok(())
}

/// A buildah with a store of its own, which goes with the directory that it is in.
struct Buildah {
    dir: PathBuf,
}

impl Buildah {
    /// Runs buildah to its end; gives its standard output, trimmed.
    fn stdout(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("buildah");
        for (option, dir) in [("--root", "store"), ("--runroot", "run")] {
            command.arg(option).arg(self.dir.join(dir));
        }
        command.args(["--storage-driver", "vfs"]).args(args);
        binaries::stdout_of(&mut command).with_context(|| format!("buildah {}", args.first().unwrap_or(&"")))
    }
}

/// Makes sure that buildah is there; the error says what to do where it cannot be had.
fn provide_buildah() -> Result<()> {
    let root = stdout_of("id", &["-u"])? == "0";
    ensure!(
        root,
        "building an image without an engine needs root (a chroot); run it as root, or build the Dockerfile with yours"
    );
    if stdout_of("buildah", &["--version"]).is_ok() {
        return Ok(());
    }
    ensure!(
        Path::new("/etc/debian_version").exists(),
        "buildah is missing; install it with this system's package manager"
    );
    println!("image: installing Debian's buildah");
    let install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends buildah";
    let mut shell = Command::new("sh");
    shell.args(["-c", install]).env("DEBIAN_FRONTEND", "noninteractive");
    binaries::stdout_of(&mut shell).map(drop).context("install buildah")
}

/// Files of an image: where each is there, and here.
type Files = BTreeMap<PathBuf, PathBuf>;

/// The shared libraries that ldd names, the loader among them. What stands below `root` here has its place below `/` there.
fn linked_libraries(ldd: &mut Command, root: &Path) -> Result<Files> {
    let output = binaries::stdout_of(ldd)?;
    ensure!(
        !output.contains("not found"),
        "{ldd:?}: a library is missing:\n{output}"
    );
    let libraries = files_in_ldd(&output, root);
    ensure!(!libraries.is_empty(), "{ldd:?} names no library");
    Ok(libraries)
}

/// What the binary is linked to, and librados with all that it is linked to, unpacked from Debian's newest packages; and where librados
/// is in the image.
fn with_librados(binary: &Path) -> Result<(Files, PathBuf)> {
    let ceph = Programs::of(CephRelease::Newest).context("the image holds librados")?;
    let (root, file) = (ceph.path(""), ceph.libraries().join(LIBRADOS));
    let mut files = linked_libraries(&mut ceph.ldd(binary)?, &root)?;
    files.extend(linked_libraries(&mut ceph.ldd(&file)?, &root)?);
    let librados = in_image(&file, &root);
    files.insert(librados.clone(), file);
    Ok((files, librados))
}

/// Where a file of an unpacked package is once the package is installed.
fn in_image(file: &Path, root: &Path) -> PathBuf {
    Path::new("/").join(file.strip_prefix(root).unwrap_or(file))
}

/// Fails unless the image's own loader finds the library and all that it is linked to.
fn expect_loadable(buildah: &Buildah, container: &str, library: &Path, files: &Files) -> Result<()> {
    let is_loader = |file: &&PathBuf| {
        file.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"))
    };
    let loader = files.keys().find(is_loader).context("the image has no loader")?;
    let run = [
        "run",
        "--isolation=chroot",
        container,
        "--",
        path(loader)?,
        "--list",
        path(library)?,
    ];
    let listed = buildah.stdout(&run)?;
    ensure!(
        !listed.contains("not found"),
        "{} does not load in the image:\n{listed}",
        library.display()
    );
    Ok(())
}

/// The files that ldd's output names. One that is looked for by its path, as the loader is, has that path in the image.
fn files_in_ldd(output: &str, root: &Path) -> Files {
    let found = output.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (wanted, file) = match words[..] {
            [wanted, "=>", file, ..] => (wanted, file),
            [file, ..] => (file, file),
            [] => return None,
        };
        let there = if wanted.starts_with('/') && wanted != file {
            PathBuf::from(wanted)
        } else {
            in_image(Path::new(file), root)
        };
        file.starts_with('/').then(|| (there, PathBuf::from(file)))
    });
    found.collect()
}

/// Makes the image [`BASE`] of these files alone.
fn base_of(buildah: &Buildah, files: &Files, rootfs: &Path) -> Result<()> {
    for (there, file) in files {
        let copy = rootfs.join(there.strip_prefix("/")?);
        std::fs::create_dir_all(copy.parent().context("a file stands in a directory")?)?;
        std::fs::copy(file, copy)?;
    }
    let container = buildah.stdout(&["from", "scratch"])?;
    buildah.stdout(&["copy", &container, path(rootfs)?, "/"])?;
    buildah.stdout(&["commit", "--quiet", "--rm", &container, BASE])?;
    Ok(())
}

/// Fails unless the image runs as [`USER`].
fn expect_unprivileged(buildah: &Buildah, image: &str) -> Result<()> {
    let inspected: Value = serde_json::from_str(&buildah.stdout(&["inspect", "--type=image", image])?)?;
    let user = inspected["OCIv1"]["config"]["User"].as_str();
    ensure!(user == Some(USER), "the image runs as {user:?}, not as {USER}");
    Ok(())
}

fn stdout_of(program: &str, args: &[&str]) -> Result<String> {
    binaries::stdout_of(Command::new(program).args(args)).with_context(|| program.to_owned())
}

fn path(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

fn size(file: &Path) -> Result<u64> {
    Ok(std::fs::metadata(file)
        .with_context(|| file.display().to_string())?
        .len())
}

/// Bytes as MiB with one decimal.
fn mib(bytes: u64) -> String {
    let tenths = (bytes * 10) >> 20;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_paths_exclude_the_kernels_library() {
        let output = "\tlinux-vdso.so.1 (0x00007f55)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f55)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f55)";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        let expected = expected.map(|file| (file.clone(), file));
        assert_eq!(files_in_ldd(output, Path::new("/")), Files::from(expected));
    }

    /// As the loader of another C library prints it.
    #[test]
    fn loader_goes_where_programs_look_for_it() {
        let output = "\tlibc.so.6 => /cache/c/usr/lib/libc.so.6 (0x00007f55)\n\t/lib64/ld-linux-x86-64.so.2 => /cache/c/usr/lib/ld-linux-x86-64.so.2 (0x00007f55)";
        let expected = [
            ("/usr/lib/libc.so.6", "/cache/c/usr/lib/libc.so.6"),
            ("/lib64/ld-linux-x86-64.so.2", "/cache/c/usr/lib/ld-linux-x86-64.so.2"),
        ];
        let expected = expected.map(|(there, file)| (PathBuf::from(there), PathBuf::from(file)));
        assert_eq!(files_in_ldd(output, Path::new("/cache/c")), Files::from(expected));
    }

    #[test]
    fn unpacked_library_goes_where_installed_ones_are() {
        let root = Path::new("/cache/ceph-1");
        let placed = |file: &str| in_image(Path::new(file), root);
        assert_eq!(
            placed("/cache/ceph-1/usr/lib/librados.so.2"),
            Path::new("/usr/lib/librados.so.2")
        );
        assert_eq!(placed("/lib/libc.so.6"), Path::new("/lib/libc.so.6"));
    }

    #[test]
    fn size_is_cut_to_tenths_of_mebibytes() {
        assert_eq!(mib((5 << 20) + (1 << 19)), "5.5");
        assert_eq!(mib(0), "0.0");
    }
}
