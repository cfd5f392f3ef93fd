//! The cluster log, followed.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A line of the cluster log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// `cluster` or `audit`.
    pub channel: String,
    /// The daemon that says it, such as `mon.a`.
    pub who: String,
    /// `[INF]`, `[WRN]` and so on.
    pub level: String,
    /// What it says.
    pub message: String,
}

/// What is done with each line. It is called on threads of librados, and must neither wait nor call librados.
pub(crate) type OnLine = Box<dyn Fn(LogLine) + Send + Sync>;

/// Called by librados for each line, with the address of an [`OnLine`].
///
/// # Safety
/// `on_line` points to an [`OnLine`] that lives until the subscription has ended; the strings end with a zero byte, or are null.
pub(crate) unsafe extern "C" fn on_log_line(
    on_line: *mut c_void,
    _line: *const c_char,
    channel: *const c_char,
    who: *const c_char,
    _name: *const c_char,
    _seconds: u64,
    _nanoseconds: u64,
    _sequence: u64,
    level: *const c_char,
    message: *const c_char,
) {
    // SAFETY: the caller's promise.
    let on_line = unsafe { &*on_line.cast::<OnLine>() };
    let text = |text: *const c_char| {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    };
    let line = LogLine {
        channel: text(channel),
        who: text(who),
        level: text(level),
        message: text(message),
    };
    // A panic must not pass through the frames of a C++ library. The panic hook has told it.
    let _ = catch_unwind(AssertUnwindSafe(|| on_line(line)));
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::mpsc;

    use super::{LogLine, OnLine, on_log_line};

    fn call(on_line: OnLine) {
        let mut on_line = on_line;
        let (channel, level, message) = (c"cluster", c"[INF]", c"osd.1 down");
        // SAFETY: a live callback, strings that end with a zero byte, and a null where there is none.
        unsafe {
            on_log_line(
                (&raw mut on_line).cast(),
                ptr::null(),
                channel.as_ptr(),
                ptr::null(),
                ptr::null(),
                0,
                0,
                0,
                level.as_ptr(),
                message.as_ptr(),
            );
        };
    }

    #[test]
    fn a_line_is_handed_on() {
        let (sender, lines) = mpsc::channel();
        call(Box::new(move |line| sender.send(line).unwrap()));
        let line = LogLine {
            channel: "cluster".to_owned(),
            who: String::new(),
            level: "[INF]".to_owned(),
            message: "osd.1 down".to_owned(),
        };
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), [line]);
    }

    #[test]
    fn a_panic_stays_on_our_side() {
        call(Box::new(|line| panic!("{}", line.message)));
    }
}
