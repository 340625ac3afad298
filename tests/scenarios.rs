//! The table of scenarios in `tests/README.md` names tests that exist, and every test that bears the id of a scenario.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot go on has failed

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A file and a test in it.
type Named = (String, String);

/// The tests of the table, with the id of their row.
fn in_the_table(table: &str) -> BTreeSet<(String, Named)> {
    let rows = table.lines().filter(|line| line.starts_with("| S"));
    rows.flat_map(|row| {
        let id = row[2..5].to_lowercase();
        let quoted: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let tests = quoted.windows(2).filter(|pair| pair[0].ends_with(".rs"));
        let tests: Vec<_> = tests
            .map(|pair| (id.clone(), (pair[0].to_owned(), pair[1].to_owned())))
            .collect();
        tests
    })
    .collect()
}

/// The functions of a source text whose names begin with ids of scenarios, with each of their ids.
fn with_ids(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (_, rest) in text.match_indices("fn s").map(|(at, _)| text.split_at(at + 3)) {
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let is_id = |part: &&str| part.len() == 3 && part[1..].bytes().all(|byte| byte.is_ascii_digit());
        for id in name.split('_').take_while(is_id) {
            found.push((id.to_owned(), name.clone()));
        }
    }
    found
}

fn in_the_code(folder: &Path, found: &mut BTreeSet<(String, Named)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            in_the_code(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let file = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap();
            let file = file.to_str().unwrap().to_owned();
            let tests = with_ids(&fs::read_to_string(&path).unwrap());
            found.extend(tests.into_iter().map(|(id, name)| (id, (file.clone(), name))));
        }
    }
}

#[test]
fn the_table_of_scenarios_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = in_the_table(&fs::read_to_string(root.join("tests/README.md")).unwrap());
    let mut code = BTreeSet::new();
    for folder in ["src", "tests", "examples"] {
        in_the_code(&root.join(folder), &mut code);
    }
    assert!(code.len() > 40, "{code:#?}");
    let missing: Vec<_> = code.difference(&table).collect();
    assert!(missing.is_empty(), "not in the table: {missing:#?}");
    let gone: Vec<_> = table.difference(&code).collect();
    assert!(gone.is_empty(), "in the table only: {gone:#?}");
}

/// The planted fault: names and rows that do not fit are seen.
#[test]
fn ids_are_read_from_names_and_rows() {
    let id = |id: &str, name: &str| (id.to_owned(), name.to_owned());
    let text = ["fn s0", "5_s07_both() fn s", "16_one() fn settled() fn st", "art()"].concat();
    let both = "s05_s07_both";
    assert_eq!(
        with_ids(&text),
        [id("s05", both), id("s07", both), id("s16", "s16_one")]
    );
    let row = "| S05 | what `this` is | `a/b.rs` `s05_one`<br>`c.rs` `s05_two` |";
    let expected = [("a/b.rs", "s05_one"), ("c.rs", "s05_two")];
    let expected = expected.map(|(file, name)| ("s05".to_owned(), id(file, name)));
    assert_eq!(in_the_table(row), BTreeSet::from(expected));
}
