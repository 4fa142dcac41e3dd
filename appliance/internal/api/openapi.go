package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
)

// object is a piece of the description; maps encode with their keys sorted, so that the same table gives the same bytes.
type object = map[string]any

// openapi is the description of the API (OpenAPI 3.1.0), made of the routes and the types that they name.
func (s *Server) openapi() (object, error) {
	b := &schemas{made: object{}}
	paths := object{}
	for i := range s.routes {
		rt := &s.routes[i]
		item, _ := paths[rt.path].(object)
		if item == nil {
			item = object{}
			paths[rt.path] = item
		}
		op, err := operation(b, rt)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", rt.method, rt.path, err)
		}
		item[strings.ToLower(rt.method)] = op
	}
	b.of(reflect.TypeFor[fault.Error]())
	return object{
		"openapi": "3.1.0",
		"info": object{"title": "Firstlight", "version": s.cfg.Version,
			"description": "The one API of the appliance: its page and its command use it. Texts may come from a wire: they are text, never markup."},
		"security": []any{object{"token": []string{}}},
		"paths":    paths,
		"components": object{"schemas": b.made, "securitySchemes": object{"token": object{"type": "http", "scheme": "bearer",
			"description": "A token of `firstlight tokens add`. On the appliance's unix socket the kernel says who calls."}}},
	}, nil
}

var inPath = regexp.MustCompile(`\{([a-z0-9]+)\}`)

func operation(b *schemas, rt *route) (object, error) {
	op := object{"operationId": strings.ReplaceAll(rt.id, " ", "-"), "summary": rt.says, "x-permission": string(rt.perm)}
	var params []any
	for _, m := range inPath.FindAllStringSubmatch(rt.path, -1) {
		params = append(params, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, p := range rt.params {
		params = append(params, object{"name": p.name, "in": "query", "description": p.says, "schema": object{"type": "string"}})
	}
	if rt.keyed() {
		params = append(params, object{"name": keyHeader, "in": "header", "schema": object{"type": "string", "maxLength": maxKey},
			"description": "The same key by the same person within a day is the same request: it gets the first answer again."})
	}
	if len(params) > 0 {
		op["parameters"] = params
	}
	if _, blob := rt.in.([]byte); blob {
		op["requestBody"] = object{"required": true, "content": object{"application/octet-stream": object{}}}
	} else if rt.in != nil {
		media := object{"schema": b.of(reflect.TypeOf(rt.in))}
		if rt.example != "" {
			var v any
			if err := json.Unmarshal([]byte(rt.example), &v); err != nil {
				return nil, fmt.Errorf("example: %w", err)
			}
			media["example"] = v
		}
		op["requestBody"] = object{"required": rt.example != "{}", "content": object{"application/json": media}}
	}
	kind := rt.kind
	if kind == "" {
		kind = "application/json"
	}
	content := object{}
	if rt.out != nil {
		content["schema"] = b.of(reflect.TypeOf(rt.out))
	}
	op["responses"] = object{
		"200": object{"description": "Done.", "content": object{kind: content}},
		"default": object{"description": "Refused: what was asked, why not, and what to do next.", "content": object{"application/json": object{
			"schema": object{"type": "object", "required": []string{"error"}, "properties": object{"error": object{"$ref": refTo + "fault.Error"}}}}}},
	}
	return op, nil
}

const refTo = "#/components/schemas/"

// schemas makes the schemas of Go types as encoding/json writes them.
type schemas struct{ made object }

// foreign are types that write themselves.
var foreign = map[reflect.Type]object{
	reflect.TypeFor[fleet.Time]():      {"type": []string{"string", "null"}, "format": "date-time", "description": "UTC with milliseconds; null for never."},
	reflect.TypeFor[time.Time]():       {"type": "string", "format": "date-time"},
	reflect.TypeFor[json.RawMessage](): {},
	reflect.TypeFor[[]byte]():          {"type": "string", "contentEncoding": "base64"},
}

// of is the schema of a type; a struct's is among the components, by its name.
func (b *schemas) of(t reflect.Type) object {
	if s, ok := foreign[t]; ok {
		return s
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Pointer:
		return object{"anyOf": []any{b.of(t.Elem()), object{"type": "null"}}}
	case reflect.Slice:
		return object{"type": "array", "items": b.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": b.of(t.Elem())}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		return b.named(t)
	}
	panic("api: no schema for " + t.String())
}

func (b *schemas) named(t reflect.Type) object {
	name := strings.TrimPrefix(t.String(), "api.")
	ref := object{"$ref": refTo + name}
	if b.made[name] != nil {
		return ref
	}
	if t == reflect.TypeFor[fault.Error]() {
		text := object{"type": "string"}
		b.made[name] = object{"type": "object", "required": []string{"kind", "op", "object", "cause", "next"},
			"properties": object{"kind": text, "op": text, "object": text, "cause": text, "next": text}}
		return ref
	}
	props := object{}
	out := object{"type": "object", "properties": props}
	b.made[name] = out
	if required := b.fields(t, props); len(required) > 0 {
		out["required"] = required
	}
	return ref
}

// fields adds a struct's fields and those of the structs in it, and returns those that are always there.
func (b *schemas) fields(t reflect.Type, props object) (required []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			required = append(required, b.fields(f.Type, props)...)
			continue
		case name == "" || name == "-" || !f.IsExported():
			continue
		}
		props[name] = b.of(f.Type)
		if options == "" {
			required = append(required, name)
		}
	}
	return required
}
