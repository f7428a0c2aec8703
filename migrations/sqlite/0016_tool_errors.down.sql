DROP TRIGGER tools_error_ai;
DROP TRIGGER tools_error_au;
