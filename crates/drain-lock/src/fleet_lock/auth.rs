//! Who may ask: whoever sends the token, where one is configured. Client certificates are checked by TLS before that.

use std::path::{Path, PathBuf};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// A longer token file is not one.
const MAX_BYTES: usize = 4096;

/// The token that clients have to send as `Authorization: Bearer`.
#[derive(Debug, Clone)]
pub struct BearerToken(PathBuf);

/// Why a request is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No token, or a wrong one.
    #[error("a bearer token is required, and this is not the right one")]
    Token,
    /// The file with the token cannot be used.
    #[error("the token cannot be checked: {0}")]
    Unusable(String),
}

impl BearerToken {
    /// The token in this file, read anew for each request: a Secret that changes counts at once.
    pub fn in_file(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Lets a request in, or says why not.
    ///
    /// # Errors
    /// [`Denied`]: a file that is missing, empty or too large lets nobody in.
    pub async fn check(&self, headers: &HeaderMap) -> Result<(), Denied> {
        let unusable = |problem: &dyn std::fmt::Display| Denied::Unusable(format!("{}: {problem}", self.0.display()));
        let content = tokio::fs::read(&self.0).await.map_err(|error| unusable(&error))?;
        let expected = content.trim_ascii();
        if expected.is_empty() || expected.len() > MAX_BYTES {
            return Err(unusable(&"it must hold one token"));
        }
        let given = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.as_bytes().split_at_checked(7))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "))
            .map(|(_, token)| token.trim_ascii())
            .ok_or(Denied::Token)?;
        if is_same(given, expected) {
            Ok(())
        } else {
            Err(Denied::Token)
        }
    }
}

/// Compares in a time that tells nothing of where the two differ, nor of their lengths: by their digests.
fn is_same(given: &[u8], expected: &[u8]) -> bool {
    let digest = |text: &[u8]| Hmac::<Sha256>::new_from_slice(b"nodeward fleet lock").map(|mac| mac.chain_update(text));
    match (digest(given), digest(expected)) {
        (Ok(given), Ok(expected)) => given.verify(&expected.finalize().into_bytes()).is_ok(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    async fn check(file: &[u8], header: Option<&str>) -> Result<(), Denied> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, file).unwrap();
        let headers = header
            .map(|value| (AUTHORIZATION, value.parse().unwrap()))
            .into_iter()
            .collect();
        BearerToken::in_file(&path).check(&headers).await
    }

    #[rstest]
    #[case::right("Bearer s3cret", true)]
    #[case::the_scheme_in_any_case("bearer s3cret", true)]
    #[case::wrong("Bearer s3cretS", false)]
    #[case::shorter("Bearer s3cre", false)]
    #[case::empty("Bearer ", false)]
    #[case::another_scheme("Basic s3cret", false)]
    #[case::no_scheme("s3cret", false)]
    #[case::nothing("", false)]
    #[tokio::test]
    async fn only_the_token_lets_in(#[case] header: &str, #[case] lets_in: bool) {
        let expected = if lets_in { Ok(()) } else { Err(Denied::Token) };
        assert_eq!(check(b"s3cret\n", Some(header)).await, expected);
    }

    #[tokio::test]
    async fn without_a_header_nobody_is_let_in() {
        assert_eq!(check(b"s3cret", None).await, Err(Denied::Token));
    }

    #[rstest]
    #[case::empty(b"".to_vec())]
    #[case::blank(b" \n".to_vec())]
    #[case::endless(vec![b'x'; 5000])]
    #[tokio::test]
    async fn a_file_without_a_token_lets_nobody_in(#[case] file: Vec<u8>) {
        assert!(matches!(check(&file, Some("Bearer ")).await, Err(Denied::Unusable(_))));
    }

    #[tokio::test]
    async fn a_file_that_is_missing_lets_nobody_in() {
        let denied = BearerToken::in_file(Path::new("/nonexistent/token"))
            .check(&HeaderMap::new())
            .await;
        assert!(matches!(denied, Err(Denied::Unusable(_))));
    }
}
