//! A connection to a Ceph cluster.

use std::ffi::{CString, c_char};
use std::fmt;
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;
use crate::error::{has_other_type, is_authentication, is_unreachable, words};
use crate::ffi::{ClusterStat, Command, Handle, Librados};
use crate::log::{LogLine, OnLine, on_log_line};

/// How long connecting may take where calls have no timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Which cluster to connect to, and as which user.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// Addresses of the monitors, as the option `mon_host` takes them.
    pub mon_host: String,
    /// `client.NAME`.
    pub user: String,
    /// The user's key, in base64.
    pub key: String,
    /// Talk to the monitors encrypted only (`ms_client_mode=secure`).
    pub encrypted: bool,
    /// How long connecting may take, and then each call, in whole seconds. With `None` a call has no timeout: what
    /// [`Cluster::mgr_command`] needs.
    pub timeout: Option<Duration>,
}

impl fmt::Debug for Options {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("mon_host", &self.mon_host)
            .field("user", &self.user)
            .field("encrypted", &self.encrypted)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Options {
    fn connect_timeout(&self) -> Duration {
        self.timeout.unwrap_or(CONNECT_TIMEOUT)
    }

    /// The options of librados that these stand for. It reads no file, and writes to nothing but its sockets.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let off = || "false".to_owned();
        let seconds = |timeout: Duration| timeout.as_secs().max(1).to_string();
        let mut settings = vec![
            ("mon_host", self.mon_host.clone()),
            ("key", self.key.clone()),
            ("log_file", String::new()),
            ("admin_socket", String::new()),
            ("log_to_stderr", off()),
            ("err_to_stderr", off()),
            ("client_mount_timeout", seconds(self.connect_timeout())),
            // 0 is none.
            (
                "rados_mon_op_timeout",
                self.timeout.map_or_else(|| "0".to_owned(), seconds),
            ),
        ];
        if self.encrypted {
            settings.extend([
                ("ms_client_mode", "secure".to_owned()),
                ("ms_mon_client_mode", "secure".to_owned()),
            ]);
        }
        settings
    }
}

/// What Ceph has answered to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The command's name.
    pub prefix: String,
    /// 0, or a negative error number. Some refusals come with an output.
    pub code: i32,
    /// What the command prints.
    pub output: Vec<u8>,
    /// A line for a person.
    pub status: String,
}

impl Answer {
    /// The output of a command that was carried out.
    ///
    /// # Errors
    /// Ceph has refused the command, or the output has another shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.accepted()?;
        self.json_anyway()
    }

    /// The output, whether the command was carried out or not.
    ///
    /// # Errors
    /// It has another shape, or there is none.
    pub fn json_anyway<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.output).map_err(|error| Error::Unreadable {
            prefix: self.prefix.clone(),
            why: error.to_string(),
        })
    }

    /// Whether the user's caps do not allow the command. A connection keeps the caps that its user had when it began.
    pub fn is_denied(&self) -> bool {
        self.code == -Errno::ACCESS.raw_os_error()
    }

    /// Whether the command was carried out.
    ///
    /// # Errors
    /// Ceph has refused it.
    pub fn accepted(&self) -> Result<(), Error> {
        if self.code >= 0 {
            return Ok(());
        }
        Err(Error::Refused {
            prefix: self.prefix.clone(),
            code: self.code,
            why: if self.status.is_empty() {
                words(self.code)
            } else {
                self.status.clone()
            },
        })
    }
}

/// A connection. librados keeps it up by itself: it looks for another monitor where one is lost.
pub struct Cluster {
    librados: &'static Librados,
    handle: Handle,
    options: Options,
    /// What librados calls for each line of the log, from `Box::into_raw`; null while the log is not followed. A raw pointer,
    /// for librados has it as well.
    on_line: *mut OnLine,
}

// SAFETY: librados locks what its handle stands for, so any thread may call it. What `on_line` points to is `Send`.
unsafe impl Send for Cluster {}
// SAFETY: as above, also for several threads at once. `on_line` changes by `&mut self` only, and what it points to is `Sync`.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Connects.
    ///
    /// # Errors
    /// librados takes an option for wrong, the monitors do not let the user in, or none answers in time.
    pub fn connect(librados: &'static Librados, options: Options) -> Result<Self, Error> {
        let (cluster, user) = (c"ceph", text("user", &options.user)?);
        let mut handle: Handle = ptr::null_mut();
        // SAFETY: a place for the handle, and two strings that outlive the call.
        let code = unsafe { (librados.create2)(&raw mut handle, cluster.as_ptr(), user.as_ptr(), 0) };
        if code < 0 {
            return Err(Error::Option {
                option: format!("the user name {}", options.user),
                why: words(code),
            });
        }
        // From here on dropping it releases the handle.
        let connection = Self {
            librados,
            handle,
            options,
            on_line: ptr::null_mut(),
        };
        for (name, value) in connection.options.settings() {
            connection.set(name, &value)?;
        }
        // SAFETY: a handle that was created and not yet shut down.
        let code = unsafe { (librados.connect)(connection.handle) };
        match code {
            0.. => Ok(connection),
            code if Errno::INVAL.raw_os_error() == -code && has_other_type(&connection.options.key) => {
                Err(Error::KeyTypeUnknown {
                    user: connection.options.user.clone(),
                })
            }
            // librados accepts any text for these, and reads it only here.
            code if Errno::INVAL.raw_os_error() == -code => Err(Error::Option {
                option: "mon_host or the key".to_owned(),
                why: words(code),
            }),
            code => Err(connection.failure("connect", code)),
        }
    }

    fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        let (option, value) = (text(name, name)?, text(name, value)?);
        // SAFETY: a live handle, and two strings that outlive the call.
        let code = unsafe { (self.librados.conf_set)(self.handle, option.as_ptr(), value.as_ptr()) };
        if code < 0 {
            return Err(Error::Option {
                option: name.to_owned(),
                why: words(code),
            });
        }
        Ok(())
    }

    /// Asks the monitors. `command` has the command's name as `prefix`, and its arguments.
    ///
    /// # Errors
    /// No monitor has answered in time. A refusal of the command is an [`Answer`].
    pub fn mon_command(&self, command: &Value) -> Result<Answer, Error> {
        self.command(self.librados.mon_command, command)
    }

    /// Asks the active manager, and waits until there is one that answers. Connect with [`Options::timeout`] `None` for this: a
    /// call that times out inside librados leaves it with pointers into a stack that is gone.
    ///
    /// # Errors
    /// The connection has been lost. A refusal of the command is an [`Answer`].
    pub fn mgr_command(&self, command: &Value) -> Result<Answer, Error> {
        self.command(self.librados.mgr_command, command)
    }

    fn command(&self, call: Command, command: &Value) -> Result<Answer, Error> {
        let prefix = command["prefix"].as_str().unwrap_or_default();
        let json = text(prefix, &command.to_string())?;
        let commands = [json.as_ptr()];
        let (mut output, mut status) = (Buffer::empty(self.librados), Buffer::empty(self.librados));
        // SAFETY: a live handle; one string that outlives the call; no input; and places for two buffers, which are freed as
        // `rados_buffer_free` is documented for.
        let code = unsafe {
            call(
                self.handle,
                commands.as_ptr(),
                commands.len(),
                ptr::null(),
                0,
                &raw mut output.start,
                &raw mut output.length,
                &raw mut status.start,
                &raw mut status.length,
            )
        };
        if is_unreachable(code) {
            return Err(self.failure(prefix, code));
        }
        Ok(Answer {
            prefix: prefix.to_owned(),
            code,
            output: output.bytes().to_vec(),
            status: String::from_utf8_lossy(status.bytes()).trim_end().to_owned(),
        })
    }

    /// Asks the monitors what is stored. It is a message of its own and no command: their audit log has no line of it.
    ///
    /// # Errors
    /// No monitor has answered in time.
    pub fn cluster_stat(&self) -> Result<ClusterStat, Error> {
        let mut stat = ClusterStat::default();
        // SAFETY: a live handle, and a place for four numbers, laid out as librados declares them. It fills them on this thread,
        // once its own call has ended: a call that times out leaves nothing behind that would write to them.
        let code = unsafe { (self.librados.cluster_stat)(self.handle, &raw mut stat) };
        if code < 0 {
            return Err(self.failure("cluster stat", code));
        }
        Ok(stat)
    }

    /// Follows the cluster log from `level` (`debug`, `info`, `warn`, `error`, `sec`) up; an earlier subscription ends.
    /// `on_line` is called on threads of librados: it must neither wait nor call this crate.
    ///
    /// # Errors
    /// There is no such level, or the monitors do not answer.
    pub fn follow_log(&mut self, level: &str, on_line: impl Fn(LogLine) + Send + Sync + 'static) -> Result<(), Error> {
        self.unfollow_log();
        let level_text = text("level", level)?;
        let on_line: OnLine = Box::new(on_line);
        // The box in the box is the thin pointer that a C callback takes.
        self.on_line = Box::into_raw(Box::new(on_line));
        // SAFETY: a live handle, a string that outlives the call, and a callback whose argument lives until the subscription
        // has ended (`unfollow_log`, at the latest in `drop`).
        let code = unsafe {
            (self.librados.monitor_log2)(self.handle, level_text.as_ptr(), Some(on_log_line), self.on_line.cast())
        };
        if code < 0 {
            return Err(self.failure("log", code));
        }
        Ok(())
    }

    fn unfollow_log(&mut self) {
        if self.on_line.is_null() {
            return;
        }
        // SAFETY: a live handle; without a callback the subscription ends.
        let _ = unsafe { (self.librados.monitor_log2)(self.handle, c"info".as_ptr(), None, ptr::null_mut()) };
        // SAFETY: from `Box::into_raw`, and freed once, for it is null from here on. librados calls back under the lock that it
        // has just taken to end the subscription: no call is under way, and none will be.
        drop(unsafe { Box::from_raw(std::mem::replace(&mut self.on_line, ptr::null_mut())) });
    }

    fn failure(&self, what: &str, code: i32) -> Error {
        let (why, options) = (words(code), &self.options);
        if is_unreachable(code) {
            Error::Unreachable {
                mon_host: options.mon_host.clone(),
                timeout: options.connect_timeout(),
                why,
            }
        } else if is_authentication(code) {
            Error::Authentication {
                user: options.user.clone(),
                why,
            }
        } else {
            Error::Refused {
                prefix: what.to_owned(),
                code,
                why,
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.unfollow_log();
        // SAFETY: a handle that was created, and is not used again.
        unsafe { (self.librados.shutdown)(self.handle) };
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cluster").field(&self.options).finish()
    }
}

/// Memory that librados has allocated for an answer.
struct Buffer {
    librados: &'static Librados,
    start: *mut c_char,
    length: usize,
}

impl Buffer {
    fn empty(librados: &'static Librados) -> Self {
        Self {
            librados,
            start: ptr::null_mut(),
            length: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        if self.start.is_null() {
            return &[];
        }
        // SAFETY: librados has set both: `length` bytes from `start`, ours until they are freed.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.start.is_null() {
            // SAFETY: allocated by librados for us, and freed once.
            unsafe { (self.librados.buffer_free)(self.start) };
        }
    }
}

fn text(option: &str, value: &str) -> Result<CString, Error> {
    CString::new(value).map_err(|_| Error::Option {
        option: option.to_owned(),
        why: "it contains a zero byte".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::{Answer, Options};
    use crate::Error;

    fn options() -> Options {
        Options {
            mon_host: "[v2:10.0.0.1:3300,v1:10.0.0.1:6789]".to_owned(),
            user: "client.nodeward".to_owned(),
            key: "AQBsecret==".to_owned(),
            encrypted: false,
            timeout: Some(Duration::from_secs(7)),
        }
    }

    #[test]
    fn options_print_without_their_key() {
        assert!(!format!("{:?}", options()).contains("secret"));
    }

    #[test]
    fn without_a_timeout_only_connecting_has_one() {
        let without = Options {
            timeout: None,
            ..options()
        };
        let setting = |options: &Options, name: &str| {
            let mut settings = options.settings().into_iter();
            settings.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        for (options, expected) in [(&options(), "7"), (&without, "0")] {
            assert_eq!(setting(options, "rados_mon_op_timeout").as_deref(), Some(expected));
        }
        for (options, expected) in [(&options(), "7"), (&without, "10")] {
            assert_eq!(setting(options, "client_mount_timeout").as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_refusal_with_an_output_can_be_read() {
        let answer = Answer {
            prefix: "osd ok-to-stop".to_owned(),
            code: -16,
            output: br#"{"ok_to_stop":false}"#.to_vec(),
            status: "unsafe to stop osd(s) at this time".to_owned(),
        };
        let refused = Error::Refused {
            prefix: "osd ok-to-stop".to_owned(),
            code: -16,
            why: "unsafe to stop osd(s) at this time".to_owned(),
        };
        assert_eq!(answer.json::<Value>(), Err(refused));
        assert_eq!(answer.json_anyway::<Value>(), Ok(json!({"ok_to_stop": false})));
    }
}
