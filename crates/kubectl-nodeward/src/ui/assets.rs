//! The files of the page, which the binary carries.

/// A file of the page.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    pub name: &'static str,
    pub content: &'static str,
}

macro_rules! assets {
    ($($name:literal),+ $(,)?) => {
        const ASSETS: &[Asset] = &[$(Asset { name: $name, content: include_str!(concat!("../../ui/", $name)) }),+];
    };
}

assets!(
    "app.js",
    "ceph.js",
    "fleet.js",
    "health.js",
    "hooks.js",
    "htm.js",
    "index.html",
    "log.js",
    "node.js",
    "preact.js",
    "queue.js",
    "route.js",
    "state.js",
    "style.css",
    "view.js",
);

pub fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

pub fn modules() -> impl Iterator<Item = &'static Asset> {
    ASSETS.iter().filter(|asset| asset.extension() == Some("js"))
}

impl Asset {
    fn extension(&self) -> Option<&'static str> {
        Some(self.name.rsplit_once('.')?.1)
    }

    pub fn content_type(&self) -> &'static str {
        match self.extension() {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What the page may weigh, in bytes.
    const AT_MOST: usize = 250_000;

    #[test]
    fn binary_carries_every_file_of_the_page() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/ui");
        let files = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let is_served = |name: &String| [".html", ".css", ".js"].iter().any(|ending| name.ends_with(ending));
        let files: BTreeSet<String> = files.filter(is_served).collect();
        let carried: BTreeSet<String> = ASSETS.iter().map(|asset| asset.name.to_owned()).collect();
        assert_eq!(carried, files);
        assert!(ASSETS.iter().map(|asset| asset.content.len()).sum::<usize>() <= AT_MOST);
    }

    #[test]
    fn nothing_comes_from_the_network() {
        for asset in ASSETS {
            for address in ["https://", "http://", "//cdn"] {
                let found = asset
                    .content
                    .matches(address)
                    .filter(|_| !asset.name.ends_with("preact.js"));
                assert_eq!(found.count(), 0, "{}", asset.name);
            }
        }
    }
}
