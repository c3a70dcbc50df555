//! The tests of zerowire-confine, in one program. Run them as root.

mod acts;
mod ends;
mod layers;
mod processes;
mod sources;
mod stage;
