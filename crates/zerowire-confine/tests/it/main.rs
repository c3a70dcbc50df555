//! The tests of zerowire-confine, in one program. Run them as root.

mod acts;
mod layers;
mod processes;
mod sources;
mod stage;
