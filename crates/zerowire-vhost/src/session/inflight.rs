//! Messages about the region in which chains in flight are marked (vhost-user, "Inflight I/O
//! tracking").

use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerowire_vhost_user::{Inflight, Message, Request};

use super::image::{AreaImage, File, InflightImage};
use super::vrings::Vrings;
use super::{Answer, SessionError, protocol, refused};
use crate::ring::inflight::{InflightRegion, Tracker};

/// Entries of each queue in a region of this side, or more if the first ring has more: the most
/// that QEMU gives a ring of a network device.
const OWN_ENTRIES: u16 = 1024;

/// A region, and where it lies in its file.
#[derive(Debug)]
struct KeptRegion {
    region: Arc<InflightRegion>,
    file: Arc<OwnedFd>,
    offset: u64,
}

/// Where chains in flight are marked.
#[derive(Debug, Default)]
pub(super) struct InflightTracking {
    /// The region that the front end keeps, if it wants one.
    shared: Option<KeptRegion>,
    /// The region that whoever runs this process keeps. It serves rings that the front end has no
    /// region for.
    own: Option<KeptRegion>,
}

impl InflightTracking {
    /// GET_INFLIGHT_FD: makes a region for `rings` and gives it to the front end. One that can't be
    /// made has size 0 in the answer, which front ends take for "none". The log file calls the VM
    /// `name`.
    pub(super) fn create(
        &mut self,
        message: &Message,
        rings: &Vrings,
        name: &str,
    ) -> Result<Answer, SessionError> {
        let wanted = parse(Request::GetInflightFd, message, rings)?;
        let (queues, queue_size) = (wanted.num_queues, wanted.queue_size);
        let (mmap_size, file) = match InflightRegion::create(queues, queue_size) {
            Ok((region, file)) => {
                let (region, file) = (Arc::new(region), Arc::new(file));
                self.shared = Some(KeptRegion { region, file: file.clone(), offset: 0 });
                (InflightRegion::bytes_for(queues, queue_size) as u64, Some(file))
            }
            Err(e) => {
                tracing::error!("{name}: a region for chains in flight can't be made: {e}");
                self.shared = None;
                (0, None)
            }
        };
        let mut body = Inflight { mmap_size, mmap_offset: 0, ..wanted }.encode().to_vec();
        // Front ends written in C send, and expect, the padding at the structure's end.
        body.resize(message.body().len(), 0);
        Ok(Answer::WithFile(body, file))
    }

    /// SET_INFLIGHT_FD: the region that this back end, or one before it, has made for `rings`.
    pub(super) fn open(&mut self, message: &mut Message, rings: &Vrings) -> Result<(), SessionError> {
        let request = Request::SetInflightFd;
        let r = parse(request, message, rings)?;
        let file = message.take_fd()?;
        self.shared = None;
        let region = InflightRegion::open(&file, r.mmap_offset, r.mmap_size, r.num_queues, r.queue_size)
            .map_err(|text| refused(request, text))?;
        self.shared =
            Some(KeptRegion { region: Arc::new(region), file: Arc::new(file), offset: r.mmap_offset });
        Ok(())
    }

    /// Keeps a region of this side from the first ring on that starts and needs one: `queue` of
    /// `queues`, with `size` entries. It serves a process that goes on after this one. Without it
    /// that one goes by the used index.
    pub(super) fn keep_own(&mut self, queue: u16, queues: usize, size: u16) {
        let shares = self.shared.as_ref().is_some_and(|shared| queue < shared.region.queues);
        if shares || self.own.is_some() {
            return;
        }
        let (queues, size) = (queues as u16, size.max(OWN_ENTRIES));
        match InflightRegion::create(queues, size) {
            Ok((region, file)) => {
                self.own = Some(KeptRegion { region: Arc::new(region), file: Arc::new(file), offset: 0 });
            }
            Err(e) => tracing::warn!("a region for chains in flight can't be made: {e}"),
        }
    }

    /// What marks the chains of a ring of `size` entries that starts, in the region of this side
    /// only if `marks`. A ring that grew beyond that one goes without.
    pub(super) fn tracker(&self, queue: u16, size: u16, marks: bool) -> Option<Box<Tracker>> {
        let of = |area: &KeptRegion| Tracker::new(&area.region, queue);
        let own = || of(self.own.as_ref().filter(|own| marks && size <= own.region.queue_size)?);
        let shared = self.shared.as_ref().and_then(of);
        shared.or_else(|| own().map(Tracker::of_this_side)).map(Box::new)
    }

    /// The regions, for an image.
    pub(super) fn image(&self) -> InflightImage<File> {
        let image = |area: &KeptRegion| AreaImage {
            queues: area.region.queues,
            queue_size: area.region.queue_size,
            offset: area.offset,
            file: area.file.clone(),
        };
        InflightImage { shared: self.shared.as_ref().map(image), own: self.own.as_ref().map(image) }
    }

    /// The regions of an image. What lies in them is checked when a ring starts.
    pub(super) fn restore(image: &InflightImage<File>) -> Result<Self, String> {
        let open = |image: &AreaImage<File>| -> Result<KeptRegion, String> {
            let &AreaImage { queues, queue_size, offset, ref file } = image;
            let bytes = InflightRegion::bytes_for(queues, queue_size) as u64;
            let region = InflightRegion::open(file, offset, bytes, queues, queue_size)?;
            Ok(KeptRegion { region: Arc::new(region), file: file.clone(), offset })
        };
        let area = |image: &Option<AreaImage<File>>| image.as_ref().map(open).transpose();
        Ok(Self { shared: area(&image.shared)?, own: area(&image.own)? })
    }

    /// The driver has reset the device: all chains are its own again. No ring runs.
    pub(super) fn clear(&mut self) {
        for area in self.shared.iter().chain(&self.own) {
            area.region.clear();
        }
    }
}

/// What a message says of a region, which no ring may use yet.
fn parse(request: Request, message: &Message, rings: &Vrings) -> Result<Inflight, SessionError> {
    let r = message.inflight()?;
    let most = rings.count();
    if !(1..=most).contains(&usize::from(r.num_queues)) {
        return Err(protocol(request, format!("{} queues, of a device that has {most}", r.num_queues)));
    }
    if !r.queue_size.is_power_of_two() || r.queue_size > 32768 {
        return Err(protocol(
            request,
            format!("queue size {} is not a power of two up to 32768 (virtio 1.3 §2.7)", r.queue_size),
        ));
    }
    if let Some(i) = rings.any_started() {
        return Err(protocol(request, format!("sent while queue {i} runs")));
    }
    Ok(r)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_of_this_side_fits_the_first_ring_and_stays() {
        for (size, entries) in [(128, 1024), (4096, 4096)] {
            let mut tracking = InflightTracking::default();
            assert!(tracking.image().own.is_none(), "no ring has started");
            tracking.keep_own(1, 2, size);
            let own = tracking.image().own.expect("a region");
            assert_eq!((own.queues, own.queue_size), (2, entries));
            let bytes = rustix::fs::fstat(&own.file).expect("a file").st_size;
            assert_eq!(bytes as usize, InflightRegion::bytes_for(2, entries));
            tracking.keep_own(0, 2, 2 * entries);
            assert!(Arc::ptr_eq(&tracking.image().own.expect("a region").file, &own.file), "it has one");
        }
    }
}
