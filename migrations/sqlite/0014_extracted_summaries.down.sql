-- Without the summaries, which are derived.
DROP TRIGGER session_errors_ad_summary;
DROP TRIGGER tools_ad_summary;
DROP TRIGGER messages_ad_summary;
DROP TRIGGER tools_au_summary;
DROP TRIGGER tools_ai_summary;
DROP TRIGGER messages_au_summary;
DROP TRIGGER messages_ai_summary;
DROP TRIGGER compaction_events_ai_summary;
DROP TRIGGER sessions_au_summary;
DROP TRIGGER sessions_ai_summary;
DROP TABLE extracted_summaries;
