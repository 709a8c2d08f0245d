//! The suite that every backend passes (sections 10 and 11; the numbers are those of the project's list of scenarios).
//!
//! A backend's test file says what it is and takes all cases:
//!
//! ```text
//! struct Mine;
//! impl picofleet_storage::conformance::Backend for Mine { /* open, reopen */ }
//! picofleet_storage::conformance!(Mine);
//! ```
//!
//! Each case runs twice: as it is, and with the store and the session reopened between every two steps.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "the suite fails by panics")]

pub mod atomicity;
mod backends;
pub mod copies;
pub mod documents;
pub mod entries;
pub mod exports;
pub mod fencing;
pub mod ids;
pub mod maintenance;
mod postgres;
pub mod records;
pub mod services;
pub mod sessions;
pub mod snapshot;
pub mod tasks;
mod world;

pub use backends::{Jsonl, Memory, Sqlite};
pub use postgres::{Database, Postgres};
pub use world::{Backend, Mode, NOW, World, export, fence, rejection};

/// Makes the tests of a backend: `conformance!(expression)`, where the expression makes a new [`Backend`](crate::conformance::Backend).
#[macro_export]
macro_rules! conformance {
    ($backend:expr) => {
        mod plain {
            use super::*;
            $crate::conformance_cases!(Plain, $backend);
        }
        mod reopened {
            use super::*;
            $crate::conformance_cases!(Reopened, $backend);
        }
    };
}

/// The list of cases.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($mode:ident, $backend:expr) => {
        $crate::conformance_tests! { $mode, $backend,
            ids::s001_the_root_conversation_is_made_once,
            ids::s004_what_was_committed_is_a_copy,
            ids::s005_what_was_read_is_a_copy,
            ids::s012_new_ids_are_those_of_the_commit,
            ids::s012_two_records_of_a_commit_have_two_ids,
            ids::s012_the_next_id_does_not_go_down,
            ids::s025_a_closed_store_refuses_everything,
            ids::s025_a_released_line_refuses_everything,
            ids::s026_ids_and_sequences_go_on,
            ids::x001_every_key_of_an_object_is_a_plain_key,
            atomicity::s002_s003_a_refused_batch_leaves_nothing,
            atomicity::s023_a_failing_document_command_leaves_nothing,
            atomicity::s023_a_refused_batch_leaves_no_bookkeeping,
            atomicity::batches_hold_commits_with_consecutive_sequences,
            atomicity::batches_land_as_a_whole_or_not_at_all,
            atomicity::batches_have_a_size,
            atomicity::batches_stand_on_their_predecessor,
            atomicity::batches_go_one_by_one,
            atomicity::batches_land_without_anybody_waiting,
            entries::s006_every_limit_gives_the_same_items,
            entries::s006_a_page_has_a_largest_size,
            entries::s007_new_entries_do_not_enter_a_running_scan,
            entries::s008_conversations_by_their_owner,
            entries::s009_a_scan_applies_every_cap,
            entries::s010_markers_and_ranges,
            entries::s011_an_entry_is_visible_through_its_descendants,
            entries::s011_the_cap_is_the_least_along_the_forks,
            entries::x002_a_cursor_survives_as_json,
            entries::x002_a_damaged_cursor_is_refused,
            entries::x003_a_cursor_belongs_to_its_scan,
            entries::x006_a_full_last_page_has_no_next,
            tasks::s013_a_task_is_its_last_record,
            tasks::s013_task_filters_combine,
            tasks::s014_parked_tasks_keep_their_state,
            tasks::s015_request_ids_are_of_one_conversation,
            tasks::s015_request_ids_are_unique_in_a_commit,
            tasks::s015_tasks_and_submissions_keep_what_never_changes,
            tasks::x004_submissions_go_through_their_states,
            tasks::x009_a_replaced_task_is_found_by_what_it_is_now,
            tasks::invocations_stay_with_their_task,
            tasks::invocations_need_their_task,
            documents::s016_a_rewindable_document_keeps_its_values,
            documents::s017_commands_of_a_commit_have_their_own_order,
            documents::s017_one_content_and_one_retirement_in_a_commit,
            documents::s017_changes_need_a_living_document,
            documents::s020_versions_change_with_a_base,
            documents::s021_an_address_is_exact,
            documents::s022_an_address_has_one_current_incarnation,
            documents::s022_created_and_retired_at_once_is_unreadable,
            documents::s022_an_address_is_used_again,
            documents::x005_long_tails_replay_exactly,
            documents::x007_reads_count_the_deltas_since_the_base,
            documents::x012_a_freed_address_is_taken_in_the_next_commit_of_a_batch,
            copies::s018_a_copy_reads_what_was_there_before,
            copies::s018_a_copy_sees_earlier_commits_of_its_batch,
            copies::s019_a_copy_needs_a_source_of_its_kind,
            copies::s019_a_copy_needs_a_source_before_the_commit,
            copies::s024_a_copy_is_independent,
            copies::s045_copies_follow_the_policy,
            copies::s046_a_fork_point_has_its_commit_s_documents,
            copies::s047_a_copy_may_skip_a_generation,
            fencing::opening_fences_the_earlier_owner,
            fencing::a_fence_keeps_what_was_committed,
            fencing::epochs_do_not_go_down,
            fencing::many_sessions_are_fenced_at_once,
            fencing::a_takeover_is_not_counted_as_an_open,
            fencing::a_reader_does_not_fence,
            fencing::three_opens_without_a_commit_quarantine,
            fencing::a_cleared_quarantine_lasts,
            fencing::a_commit_clears_the_count_of_opens,
            fencing::a_quarantined_session_is_not_opened,
            sessions::sessions_are_made_once,
            sessions::sessions_are_listed,
            sessions::sessions_are_apart,
            sessions::a_deleted_session_is_gone_at_once,
            sessions::a_deleted_session_is_swept,
            services::request_keys_keep_their_answer,
            services::notices_stay_until_acknowledged,
            services::a_session_has_one_wake_time,
            services::due_sessions_come_in_order,
            exports::an_export_is_text,
            exports::an_import_reads_as_the_export,
            exports::an_export_leaves_out_what_nobody_can_read,
            exports::sound_sessions_are_examined_without_a_finding,
            exports::an_imported_session_goes_on,
            exports::a_deleted_session_comes_back_by_import,
            exports::damaged_exports_are_refused,
            exports::contradicting_exports_are_refused,
            exports::an_export_shows_one_sequence,
            exports::a_delete_ends_a_running_export,
            maintenance::x011_reclamation_changes_no_value,
            maintenance::x011_history_is_kept,
            maintenance::commit_rows_go_when_far_behind_and_old,
            maintenance::request_keys_go_after_two_days,
            maintenance::tombstones_go_in_bounded_steps,
            maintenance::maintenance_of_nothing_ends,
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($mode:ident, $backend:expr, $($module:ident::$case:ident),* $(,)?) => {$(
        #[tokio::test]
        async fn $case() {
            let world = $crate::conformance::World::new($backend, $crate::conformance::Mode::$mode).await;
            $crate::conformance::$module::$case(world).await;
        }
    )*};
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_listed() {
        let list = include_str!("conformance.rs");
        for (module, text) in [
            ("atomicity", include_str!("conformance/atomicity.rs")),
            ("copies", include_str!("conformance/copies.rs")),
            ("documents", include_str!("conformance/documents.rs")),
            ("entries", include_str!("conformance/entries.rs")),
            ("exports", include_str!("conformance/exports.rs")),
            ("fencing", include_str!("conformance/fencing.rs")),
            ("ids", include_str!("conformance/ids.rs")),
            ("maintenance", include_str!("conformance/maintenance.rs")),
            ("services", include_str!("conformance/services.rs")),
            ("sessions", include_str!("conformance/sessions.rs")),
            ("tasks", include_str!("conformance/tasks.rs")),
        ] {
            let cases = text.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split_once("(mut world: World)"));
            for (case, _) in cases {
                assert!(list.contains(&format!("{module}::{case},")), "{module}::{case} is not listed");
            }
        }
    }
}
