//! A request for a capture, as JSON.

use std::path::Path;

use serde::{Deserialize, Serialize};
use zerowire_capture::{CaptureFilter, CaptureOptions, CaptureTarget, MAX_SNAPLEN};

use crate::file::WrongKey;
use crate::spec;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureTable {
    /// Name of the file, in the folder of `--pcap-dir`.
    pub file: String,
    /// Bytes that are kept of a frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
    /// SIZE,FILES.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotate: Option<String>,
    /// Names of the VMs to capture; none for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<String>,
    /// Which frames are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

impl CaptureTable {
    /// The options for a capture of packets of this link type into a file of this folder.
    pub fn options(&self, folder: &Path, link: u16) -> Result<CaptureOptions, WrongKey> {
        let wrong = |text: String, key| WrongKey { key, text };
        let name = &self.file;
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            let text = format!("file '{name}': give the name of a file in {}, without '/'", folder.display());
            return Err(wrong(text, "file"));
        }
        let snaplen = self.snaplen.unwrap_or(MAX_SNAPLEN);
        if !(1..=MAX_SNAPLEN).contains(&snaplen) {
            return Err(wrong(format!("snaplen {snaplen}: give 1 to {MAX_SNAPLEN} bytes"), "snaplen"));
        }
        let filter = self.filter.as_deref().map(|text| CaptureFilter::parse(text, link)).transpose();
        let rotation = self.rotate.as_deref().map(spec::rotation).transpose();
        Ok(CaptureOptions::new(CaptureTarget::File(folder.join(name)))
            .no_links(true)
            .snaplen(snaplen)
            .rotation(rotation.map_err(|text| wrong(text, "rotate"))?)
            .only(self.vms.clone())
            .filter(filter.map_err(|e| wrong(e.to_string(), "filter"))?))
    }

    /// A capture with these options.
    pub fn of(options: &CaptureOptions) -> Self {
        Self {
            file: options.target.to_string(),
            snaplen: Some(options.snaplen),
            rotate: options.rotation.map(|rotation| format!("{},{}", rotation.bytes, rotation.files)),
            vms: options.only.clone(),
            filter: options.filter.as_ref().map(ToString::to_string),
        }
    }
}

#[cfg(test)]
mod tests {
    use zerowire_capture::LINKTYPE_ETHERNET;

    use super::*;

    fn table(file: &str) -> CaptureTable {
        CaptureTable { file: file.to_owned(), snaplen: None, rotate: None, vms: Vec::new(), filter: None }
    }

    #[test]
    fn files_lie_in_the_folder() {
        let options = table("a.pcapng").options("/captures".as_ref(), LINKTYPE_ETHERNET).expect("a file");
        assert_eq!(options.target, CaptureTarget::File("/captures/a.pcapng".into()));
        for bad in ["", ".", "..", ".hidden", "a/b", "/a", "../a", "a\0"] {
            let error = table(bad).options("/captures".as_ref(), LINKTYPE_ETHERNET).expect_err(bad);
            assert_eq!(error.key, "file", "{bad}: {error}");
        }
    }

    #[test]
    fn what_was_asked_for_is_shown() {
        let asked = CaptureTable {
            snaplen: Some(128),
            rotate: Some("1M,4".to_owned()),
            vms: vec!["web".to_owned()],
            filter: Some("tcp port 80".to_owned()),
            ..table("a")
        };
        let options = asked.options("/c".as_ref(), LINKTYPE_ETHERNET).expect("good options");
        let shown = CaptureTable { file: "/c/a".to_owned(), rotate: Some("1048576,4".to_owned()), ..asked };
        assert_eq!(CaptureTable::of(&options), shown);
        for (bad, key) in [
            (CaptureTable { snaplen: Some(0), ..table("a") }, "snaplen"),
            (CaptureTable { snaplen: Some(262_145), ..table("a") }, "snaplen"),
            (CaptureTable { rotate: Some("1K,4".to_owned()), ..table("a") }, "rotate"),
            (CaptureTable { filter: Some("cid 3".to_owned()), ..table("a") }, "filter"),
        ] {
            assert_eq!(bad.options("/c".as_ref(), LINKTYPE_ETHERNET).expect_err(key).key, key);
        }
    }
}
