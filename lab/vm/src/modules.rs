//! Kernel modules and what they depend on.
//!
//! A module names its direct dependencies in its `.modinfo` section (`depends=a,b`, Linux
//! `scripts/mod/modpost.c`). So neither `modprobe` nor an index is needed to find the order in
//! which to load them.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// One module, ready to load.
#[derive(Debug)]
pub struct Module {
    /// Its name with underscores.
    pub name: String,
    /// The object file, decompressed.
    pub object: Vec<u8>,
}

/// The modules of one kernel by name.
#[derive(Debug)]
pub struct ModuleTree {
    files: HashMap<String, PathBuf>,
}

impl ModuleTree {
    /// Lists the modules below a folder.
    ///
    /// # Errors
    /// A folder can't be read.
    pub fn scan(root: &Path) -> Result<Self> {
        let mut files = HashMap::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let entries =
                std::fs::read_dir(&folder).with_context(|| format!("read folder {}", folder.display()))?;
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    folders.push(entry.path());
                } else if let Some(name) = module_name(&entry.file_name().to_string_lossy()) {
                    files.insert(name, entry.path());
                }
            }
        }
        Ok(Self { files })
    }

    /// The wanted modules and all they need, in an order in which they load.
    /// A wanted module that has no file is taken for built in: kernels differ there.
    ///
    /// # Errors
    /// A file can't be read, or a dependency has no file.
    pub fn resolve(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut order = Vec::new();
        let mut seen = HashSet::new();
        for name in wanted {
            let name = name.replace('-', "_");
            if self.files.contains_key(&name) {
                self.visit(&name, &mut seen, &mut order)?;
            }
        }
        Ok(order)
    }

    fn visit(&self, name: &str, seen: &mut HashSet<String>, order: &mut Vec<Module>) -> Result<()> {
        if !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else {
            bail!("module {name} is needed but has no file");
        };
        let object = read_module(path)?;
        for dependency in dependencies(&object) {
            self.visit(&dependency.replace('-', "_"), seen, order)?;
        }
        order.push(Module { name: name.to_owned(), object });
        Ok(())
    }
}

fn module_name(file: &str) -> Option<String> {
    let stem = file.strip_suffix(".ko").or_else(|| file.strip_suffix(".ko.xz"))?;
    Some(stem.replace('-', "_"))
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_some_and(|extension| extension == "xz") {
        let output = Command::new("xz").arg("-dc").arg(path).output();
        let output = output.context("can't start xz: install xz-utils")?;
        if !output.status.success() {
            bail!("xz cannot read {}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
        }
        return Ok(output.stdout);
    }
    std::fs::read(path).with_context(|| format!("read {}", path.display()))
}

/// The names after `depends=` in an object file.
fn dependencies(object: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = object.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = &object[start + KEY.len()..];
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    let value = String::from_utf8_lossy(&value[..end]);
    value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
