//! Tests by rule, and random histories checked against what lanes promise.

mod audit;
mod batches;
mod bench;
mod care;
mod check;
mod floor;
mod gap;
mod order;
mod property;
mod retry;
mod room;
mod spill;
mod tenure;
mod watchdog;
mod world;
mod younger;
