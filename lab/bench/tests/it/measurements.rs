//! The pages in measurements/ are as their JSON has them.

use std::path::Path;

use zerowire_bench::measurements::render;

#[test]
fn the_pages_are_as_their_json_has_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../measurements");
    let rendered = render(&folder, true).unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(rendered.changed, Vec::<std::path::PathBuf>::new(), "run 'make measurements'");
    assert_eq!(rendered.unused, Vec::<String>::new(), "no page takes these");
}
