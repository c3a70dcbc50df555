//! What the kernel says that it can do of zero-copy receive (io_uring/query.c, Linux 7.0).

use super::abi::{CTRL_ADD_AREA, QUERY_ZCRX, QueryZcrx};
use crate::uring::calls;

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// `ZCRX_REG_*` that a registration may have.
    pub registrations: u64,
    /// `IORING_ZCRX_AREA_*` that an area may have.
    pub areas: u64,
    /// Operations of `IORING_REGISTER_ZCRX_CTRL`.
    pub controls: u32,
    /// `ZCRX_FEATURE_*`.
    pub features: u32,
}

impl Abilities {
    /// Whether areas can be added to a registration (`ZCRX_CTRL_ADD_AREA`, Linux 7.3).
    pub fn has_more_areas(self) -> bool {
        self.controls > CTRL_ADD_AREA
    }
}

/// Asks the kernel; `None` where it doesn't answer (before 7.0, or io_uring is forbidden).
pub fn abilities() -> Option<Abilities> {
    let QueryZcrx { register_flags, area_flags, controls, features, .. } = calls::query(QUERY_ZCRX).ok()?;
    Some(Abilities { registrations: register_flags, areas: area_flags, controls, features })
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_answer_is_whole_or_none() {
        // Older kernels have no answer; newer ones flush, export and know at least import.
        if let Some(a) = super::abilities() {
            assert!(a.controls >= 1 && a.registrations & 1 == 1, "{a:?}");
        }
    }

    /// The count is one above the last operation that the kernel knows.
    #[test]
    fn areas_are_added_by_kernels_that_know_the_operation() {
        for (controls, has) in [(0, false), (3, false), (4, true), (9, true)] {
            let a = super::Abilities { registrations: 3, areas: 1, controls, features: 1 };
            assert_eq!(a.has_more_areas(), has, "{controls}");
        }
    }
}
