//! Courses that have failed once, each as short as it could be made, with a sentence about what it showed.
//!
//! A run that fails prints its course as it belongs into `regressions.jsonl`.

use serde::Deserialize;

use crate::course::Course;

#[derive(Deserialize)]
struct Regression {
    why: String,
    course: Course,
}

#[test]
fn what_has_failed_once_does_not_fail_again() {
    let lines = include_str!("regressions.jsonl").lines();
    for line in lines {
        let Regression { why, course } = serde_json::from_str(line).unwrap();
        crate::run(&why, &course);
    }
}
