//! The functions of librados, looked up by name.

use std::error::Error as _;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use libloading::Library;

use crate::Error;

/// The library's file, with the version of its binary interface.
const FILE: &str = "librados.so.2";

/// `rados_t`.
pub(crate) type Handle = *mut c_void;

/// `rados_mon_command` and `rados_mgr_command`: command, its length, input, its length, output, its length, status, its length.
pub(crate) type Command = unsafe extern "C" fn(
    Handle,
    *const *const c_char,
    usize,
    *const c_char,
    usize,
    *mut *mut c_char,
    *mut usize,
    *mut *mut c_char,
    *mut usize,
) -> c_int;

/// `rados_cluster_stat_t`: what is stored in all pools, as the monitors know it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterStat {
    /// Size of all OSDs, in KiB.
    pub kb: u64,
    /// Used of it.
    pub kb_used: u64,
    /// Free.
    pub kb_avail: u64,
    /// Objects.
    pub num_objects: u64,
}

/// `rados_log_callback2_t`: argument, line, channel, who, name, seconds, nanoseconds, sequence number, level, message.
pub(crate) type LogCallback = unsafe extern "C" fn(
    *mut c_void,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
    u64,
    u64,
    u64,
    *const c_char,
    *const c_char,
);

/// Declares the table of functions and how it is filled.
macro_rules! functions {
    ($($name:ident: $symbol:literal as $signature:ty;)+) => {
        /// librados, loaded.
        pub struct Librados {
            $(pub(crate) $name: $signature,)+
            /// Never unloaded: the functions above point into it.
            _library: ManuallyDrop<Library>,
        }

        impl Librados {
            fn find(library: Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of the function's declaration in `rados/librados.h`, which has not changed
                        // since version 2 of the binary interface.
                        let symbol = unsafe { library.get::<$signature>($symbol) }?;
                        *symbol
                    },)+
                    _library: ManuallyDrop::new(library),
                })
            }
        }
    };
}

functions! {
    version: b"rados_version\0" as unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int);
    create2: b"rados_create2\0" as unsafe extern "C" fn(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    conf_set: b"rados_conf_set\0" as unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> c_int;
    connect: b"rados_connect\0" as unsafe extern "C" fn(Handle) -> c_int;
    shutdown: b"rados_shutdown\0" as unsafe extern "C" fn(Handle);
    mon_command: b"rados_mon_command\0" as Command;
    mgr_command: b"rados_mgr_command\0" as Command;
    cluster_stat: b"rados_cluster_stat\0" as unsafe extern "C" fn(Handle, *mut ClusterStat) -> c_int;
    buffer_free: b"rados_buffer_free\0" as unsafe extern "C" fn(*mut c_char);
    monitor_log2: b"rados_monitor_log2\0"
        as unsafe extern "C" fn(Handle, *const c_char, Option<LogCallback>, *mut c_void) -> c_int;
}

impl Librados {
    /// The library, loaded once a process.
    ///
    /// # Errors
    /// It is not there, or lacks a function.
    pub fn load() -> Result<&'static Self, Error> {
        static LOADED: OnceLock<Result<Librados, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| Self::open(FILE).map_err(|error| with_cause(&error)));
        loaded.as_ref().map_err(|why| Error::LibraryMissing {
            file: FILE,
            why: why.clone(),
        })
    }

    fn open(file: &str) -> Result<Self, libloading::Error> {
        // SAFETY: librados sets up global state when it is loaded, and needs nothing of us for that.
        let library = unsafe { Library::new(file) }?;
        Self::find(library)
    }

    /// The version of librados' own interface, such as 3.0.0: not that of Ceph.
    pub fn version(&self) -> (i32, i32, i32) {
        let (mut major, mut minor, mut extra) = (0, 0, 0);
        // SAFETY: three places for three integers.
        unsafe { (self.version)(&raw mut major, &raw mut minor, &raw mut extra) };
        (major, minor, extra)
    }
}

impl fmt::Debug for Librados {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, extra) = self.version();
        write!(f, "librados {major}.{minor}.{extra}")
    }
}

/// An error in words: the loader's own are in the cause.
fn with_cause(error: &libloading::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::{Librados, with_cause};

    #[test]
    fn a_missing_library_is_named() {
        let error = with_cause(&Librados::open("librados-of-no-release.so.2").unwrap_err());
        assert!(error.contains("librados-of-no-release.so.2"), "{error}");
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        let error = with_cause(&Librados::open("libc.so.6").unwrap_err());
        assert!(error.contains("rados_"), "{error}");
    }
}
