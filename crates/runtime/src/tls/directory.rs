//! A certificate in a directory, as cert-manager, a Secret volume or a person puts it there.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::pair::{Pair, PairError};
use super::{Served, Tls};
use crate::file_changes::{FileChanges, directory_of};
use crate::metrics::Metrics;

const CERTIFICATE: &str = "tls.crt";

/// Its private key.
const KEY: &str = "tls.key";

/// The longest file that is taken for a certificate or a key, in bytes.
const LONGEST: u64 = 1024 * 1024;

/// `tls.crt` and `tls.key` in a directory, re-read on change; a broken new pair leaves the last good one in place.
pub struct TlsDirectory {
    files: Files,
    changes: FileChanges,
    served: Served,
    content: Option<Content>,
}

struct Files {
    directory: PathBuf,
    client_authority: Option<PathBuf>,
}

#[derive(PartialEq)]
struct Content {
    chain: Vec<u8>,
    key: Vec<u8>,
    client_authority: Option<Vec<u8>>,
}

impl TlsDirectory {
    /// Reads what is there now, and begins to watch. `name` begins the names of the metrics
    /// `<name>_certificate_expiry_timestamp_seconds` and `<name>_certificate_rejected`. With `client_authority` (a file)
    /// clients need a certificate that it signed.
    pub fn open(name: &'static str, directory: &Path, client_authority: Option<&Path>, metrics: &Metrics) -> Self {
        let mut watched = vec![directory.to_owned()];
        watched.extend(client_authority.map(directory_of));
        watched.dedup();
        let mut tls = Self {
            files: Files {
                directory: directory.to_owned(),
                client_authority: client_authority.map(Path::to_owned),
            },
            // Before the first look, so that no change is missed.
            changes: FileChanges::within(&watched),
            served: Served::new(name, metrics),
            content: None,
        };
        tls.look();
        tls
    }

    /// What new connections are served with.
    pub fn tls(&self) -> Tls {
        self.served.tls()
    }

    /// Re-reads on change until `stop` is cancelled.
    pub async fn follow(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.changes.next() => self.look(),
            }
        }
    }

    fn look(&mut self) {
        match self.files.read() {
            Ok(content) if self.content.as_ref() == Some(&content) => self.served.unchanged(),
            Ok(content) => match content.pair() {
                Ok(pair) => {
                    self.served.put(&pair);
                    self.content = Some(content);
                }
                Err(error) => self.served.reject(&error),
            },
            Err(error) => self.served.reject(&error),
        }
    }
}

impl Files {
    fn read(&self) -> Result<Content, PairError> {
        Ok(Content {
            chain: read(&self.directory.join(CERTIFICATE))?,
            key: read(&self.directory.join(KEY))?,
            client_authority: self.client_authority.as_deref().map(read).transpose()?,
        })
    }
}

impl Content {
    fn pair(&self) -> Result<Pair, PairError> {
        Pair::from_pem(&self.chain, &self.key, self.client_authority.as_deref())?.unexpired(Timestamp::now())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, PairError> {
    let failed = |source| PairError::Unreadable {
        path: path.display().to_string(),
        source,
    };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > LONGEST {
        return Err(failed(std::io::Error::other(format!("it has {size} bytes"))));
    }
    std::fs::read(path).map_err(failed)
}
