//! Runs a search and says what it has seen.

use std::fmt::Write;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use crate::actions::Action;
use crate::bounds::Bounds;
use crate::planted::Plant;
use crate::world::World;

/// Whether to search further than a usual test run has time for.
pub(crate) fn is_wide() -> bool {
    std::env::var("JETRING_MODEL").is_ok_and(|value| value == "wide")
}

/// Visits every state within the bounds: no invariant may be broken, and whatever must be possible must be seen.
pub(crate) fn holds(name: &str, bounds: Bounds) {
    let start = Instant::now();
    let name = format!("{name}, {} x {}", bounds.members, bounds.partitions);
    let checker = bounds.checker().spawn_dfs().join();
    let states = checker.unique_state_count();
    println!(
        "{name}: {states} states, {} steps between them, depth {}, {:.1} s",
        checker.state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64()
    );
    let bounds = checker.model();
    for property in bounds.properties() {
        let found = checker.discovery(property.name);
        match (property.expectation, found) {
            (Expectation::Sometimes, None) => panic!("{name}: never seen: {}\n{bounds:?}", property.name),
            (Expectation::Always, Some(path)) => {
                panic!("{name}: broken: {}\n{bounds:?}\n{}", property.name, story(bounds, path));
            }
            _ => {}
        }
    }
}

/// The planted fault must break exactly this invariant first.
pub(crate) fn finds(plant: Plant, broken: &'static str, bounds: Bounds) {
    let bounds = Bounds {
        plant: Some(plant),
        ..bounds
    };
    let checker = bounds.checker().finish_when(HasDiscoveries::AnyFailures);
    // Breadth first, for the shortest story.
    let checker = checker.spawn_bfs().join();
    let Some(path) = checker.discovery(broken) else {
        let found: Vec<_> = checker.discoveries().into_keys().collect();
        panic!(
            "{plant:?} was not found after {} states, but {found:?}",
            checker.unique_state_count()
        );
    };
    println!(
        "{plant:?} breaks {broken:?}, found after {} states:\n{}",
        checker.unique_state_count(),
        story(checker.model(), path)
    );
}

/// A path, one step a line.
fn story(bounds: &Bounds, path: Path<World, Action>) -> String {
    let mut text = String::new();
    for (world, action) in path.into_vec() {
        let Some(action) = action else { continue };
        writeln!(text, "{:>6} {}", world.now, tell(bounds, &world, action)).unwrap();
    }
    text
}

fn tell(bounds: &Bounds, world: &World, action: Action) -> String {
    let command = match action {
        Action::Serve(slot, ticket)
        | Action::Deliver(slot, ticket)
        | Action::Unanswered(slot, ticket)
        | Action::Lose(slot, ticket)
        | Action::Slow(slot, ticket) => {
            let asked = world.process(slot).and_then(|process| process.asked.get(&ticket));
            asked.map(|asked| format!("{:?}", asked.command))
        }
        Action::Land(life, ticket) => world.limbo.get(&(life, ticket)).map(|command| format!("{command:?}")),
        _ => None,
    };
    let action = bounds.format_action(&action);
    command.map_or(action.clone(), |command| {
        format!("{action} {}", command.chars().take(160).collect::<String>())
    })
}
