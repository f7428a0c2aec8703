-- Functions and operators that the shared SQL uses and PostgreSQL lacks, as SQLite defines them (docs/decisions/0025).
-- The schema comes before pg_catalog in the search path, so that these are found first.

-- A path is $.name, $.name.name or a name.
CREATE FUNCTION json_path(path text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN path LIKE '$.%' THEN string_to_array(replace(pg_catalog.substr(path, 3), '"', ''), '.')
                WHEN path = '$' THEN '{}'::text[] ELSE ARRAY[path] END
$$;

-- It refers to nothing in this schema: an index uses it, and PostgreSQL builds indexes with a search path of its own.
CREATE FUNCTION json_extract(document text, path text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT document::json #>> CASE
        WHEN path LIKE '$.%' THEN string_to_array(replace(pg_catalog.substr(path, 3), '"', ''), '.') ELSE ARRAY[path] END
$$;

CREATE FUNCTION json_element(document text, place integer) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT document::json ->> place
$$;

CREATE OPERATOR ->> (LEFTARG = text, RIGHTARG = text, FUNCTION = json_extract);
CREATE OPERATOR ->> (LEFTARG = text, RIGHTARG = integer, FUNCTION = json_element);

CREATE FUNCTION json_type(document text, path text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT json_typeof(document::json #> json_path(path))
$$;

CREATE FUNCTION json_valid(document text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN document::json IS NOT NULL;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN false;
END $$;

-- jsonb refuses the character U+0000, which a text of PostgreSQL cannot hold.
CREATE FUNCTION json_storable(document text) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT replace(document, '\u0000', '\ufffd')::jsonb
$$;

CREATE FUNCTION json_minified(document text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT json_storable(document)::text
$$;

CREATE FUNCTION json_quote(value text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT to_json(value)::text
$$;

CREATE FUNCTION json_set(document text, path text, value text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT jsonb_set(json_storable(document), json_path(path), coalesce(to_jsonb(value), 'null'))::text
$$;

CREATE FUNCTION json_set(document text, path text, value bigint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT jsonb_set(json_storable(document), json_path(path), coalesce(to_jsonb(value), 'null'))::text
$$;

-- A merge patch of RFC 7396.
CREATE FUNCTION json_merge(target jsonb, patch jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    name text;
    value jsonb;
BEGIN
    IF jsonb_typeof(patch) <> 'object' THEN
        RETURN patch;
    END IF;
    IF target IS NULL OR jsonb_typeof(target) <> 'object' THEN
        target := '{}';
    END IF;
    FOR name, value IN SELECT * FROM jsonb_each(patch) LOOP
        IF jsonb_typeof(value) = 'null' THEN
            target := target - name;
        ELSE
            target := jsonb_set(target, ARRAY[name], json_merge(target -> name, value));
        END IF;
    END LOOP;
    RETURN target;
END $$;

CREATE FUNCTION json_patch(document text, patch text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT json_merge(json_storable(document), json_storable(patch))::text
$$;

CREATE FUNCTION json_patch(document text, patch json) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT json_merge(json_storable(document), json_storable(patch::text))::text
$$;

-- Lists are bound as JSON arrays: json_each for those of texts, json_each_integer for those of integers.
CREATE FUNCTION json_each(document text) RETURNS TABLE (key bigint, value text)
LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 20 AS $$
    SELECT place - 1, item FROM json_array_elements_text(document::json) WITH ORDINALITY AS items (item, place)
$$;

CREATE FUNCTION json_each_integer(document text) RETURNS TABLE (key bigint, value bigint)
LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 100 AS $$
    SELECT place - 1, item::bigint FROM json_array_elements_text(document::json) WITH ORDINALITY AS items (item, place)
$$;

CREATE FUNCTION substr(value text, start integer) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN start < 0 THEN right(value, -start) ELSE pg_catalog.substr(value, start) END
$$;

CREATE FUNCTION substr(value text, start integer, count integer) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN start < 0 THEN left(right(value, -start), greatest(count, 0))
                ELSE pg_catalog.substr(value, start, greatest(count, 0)) END
$$;

CREATE FUNCTION substr(value text, start bigint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(value, start::integer)
$$;

CREATE FUNCTION substr(value text, start bigint, count bigint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(value, start::integer, least(count, 2147483647)::integer)
$$;

CREATE FUNCTION instr(value text, part text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT strpos(value, part)::bigint
$$;

-- With two arguments, these are no aggregates; NULL if one of them is.
CREATE FUNCTION max(one anycompatible, other anycompatible) RETURNS anycompatible
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN one IS NULL OR other IS NULL THEN NULL ELSE greatest(one, other) END
$$;

CREATE FUNCTION min(one anycompatible, other anycompatible) RETURNS anycompatible
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN one IS NULL OR other IS NULL THEN NULL ELSE least(one, other) END
$$;

CREATE FUNCTION round(value double precision, digits integer) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT pg_catalog.round(value::numeric, digits)::double precision
$$;

CREATE FUNCTION unhex(value text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT decode(value, 'hex')
$$;

-- The local day of a time in seconds: date(seconds, 'unixepoch', 'localtime').
CREATE FUNCTION date(seconds bigint, unit text, zone text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT to_char(to_timestamp(seconds), 'YYYY-MM-DD')
$$;

-- Numbers from JSON are texts.
CREATE FUNCTION bigint_eq_text(one bigint, other text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT one = other::bigint
$$;

CREATE FUNCTION bigint_ge_text(one bigint, other text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT one >= other::bigint
$$;

CREATE FUNCTION bigint_le_text(one bigint, other text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT one <= other::bigint
$$;

CREATE OPERATOR = (LEFTARG = bigint, RIGHTARG = text, FUNCTION = bigint_eq_text);
CREATE OPERATOR >= (LEFTARG = bigint, RIGHTARG = text, FUNCTION = bigint_ge_text);
CREATE OPERATOR <= (LEFTARG = bigint, RIGHTARG = text, FUNCTION = bigint_le_text);

-- Sums: total is 0 for no rows, and conditions count as 0 and 1.
CREATE FUNCTION add_condition(sum double precision, condition boolean) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT sum + condition::integer
$$;

CREATE FUNCTION add_condition(sum bigint, condition boolean) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT sum + condition::integer
$$;

CREATE AGGREGATE total(double precision) (SFUNC = float8pl, STYPE = double precision, INITCOND = '0');
CREATE AGGREGATE total(boolean) (SFUNC = add_condition, STYPE = double precision, INITCOND = '0');
CREATE AGGREGATE sum(boolean) (SFUNC = add_condition, STYPE = bigint, INITCOND = '0');

CREATE FUNCTION max(one bigint, two bigint, three bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN one IS NULL OR two IS NULL OR three IS NULL THEN NULL ELSE greatest(one, two, three) END
$$;

CREATE AGGREGATE max(boolean) (SFUNC = boolor_statefunc, STYPE = boolean);

CREATE FUNCTION log2(value double precision) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ln(value) / ln(2.0)
$$;
