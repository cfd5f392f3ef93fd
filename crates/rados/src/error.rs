//! What can go wrong, in terms of what a person can do about it.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// Why a call to Ceph came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// librados is not there, or is not what it is taken for.
    #[error("{file} cannot be loaded ({why}): the image must contain librados2")]
    LibraryMissing {
        /// The file looked for.
        file: &'static str,
        /// The loader's words.
        why: String,
    },
    /// The monitors refuse the user or its key.
    #[error("the monitors refuse user {user} ({why}): check its key and capabilities")]
    Authentication {
        /// `client.NAME`.
        user: String,
        /// The system's words.
        why: String,
    },
    /// No monitor has answered.
    #[error("no monitor at {mon_host} has answered within {timeout:?} ({why})")]
    Unreachable {
        /// The addresses tried.
        mon_host: String,
        /// How long.
        timeout: Duration,
        /// The system's words.
        why: String,
    },
    /// Ceph has understood the command, and does not carry it out.
    #[error("Ceph refuses \"{prefix}\": {why}")]
    Refused {
        /// The command's name.
        prefix: String,
        /// Negative error number.
        code: i32,
        /// Ceph's words, or else the system's.
        why: String,
    },
    /// The answer is not what the command is documented to give.
    #[error("the answer to \"{prefix}\" cannot be read: {why}")]
    Unreadable {
        /// The command's name.
        prefix: String,
        /// Where it went wrong.
        why: String,
    },
    /// librados does not know the type of the key.
    #[error(
        "this librados does not know the type of the key of {user}: it needs one of Ceph 19.2.6, 20.2.4 or later, or a key of type aes"
    )]
    KeyTypeUnknown {
        /// `client.NAME`.
        user: String,
    },
    /// An option that librados does not take.
    #[error("librados does not take {option}: {why}")]
    Option {
        /// Its name.
        option: String,
        /// The system's words.
        why: String,
    },
}

/// The system's words for a negative error number.
pub(crate) fn words(code: i32) -> String {
    io::Error::from_raw_os_error(-code).to_string()
}

/// Whether a key is of another type than AES, which every librados knows. The type is the first number of a key, before base64.
pub(crate) fn has_other_type(key: &str) -> bool {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    // 1 in the first eight bits, and 0 in the next four.
    !key.is_empty() && key.bytes().all(is_base64) && !key.starts_with("AQ")
}

/// Whether the number says that the user is not let in.
pub(crate) fn is_authentication(code: i32) -> bool {
    [Errno::ACCESS, Errno::PERM, Errno::NOENT]
        .iter()
        .any(|errno| errno.raw_os_error() == -code)
}

/// Whether the number says that nobody has answered.
pub(crate) fn is_unreachable(code: i32) -> bool {
    [Errno::TIMEDOUT, Errno::NOTCONN, Errno::SHUTDOWN, Errno::CONNREFUSED]
        .iter()
        .any(|errno| errno.raw_os_error() == -code)
}

#[cfg(test)]
mod tests {
    use super::has_other_type;

    #[test]
    fn type_of_a_key_is_told() {
        for (key, expected) in [
            ("AQDnW0pmAAAAABAAHsGqYqVhPxVtzgTQyKHw1g==", false),
            ("AgDnW0pmAAAAACAAHsGqYqVhPxVtzgTQyKHw1h7BqmKlYT8Vbc4E0Mih8NY=", true),
            ("not base64", false),
            ("", false),
        ] {
            assert_eq!(has_other_type(key), expected, "{key}");
        }
    }
}
